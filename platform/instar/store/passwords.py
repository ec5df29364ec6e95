"""Passwords: checked against a short policy, kept as argon2id, compared in the same time for all.

An address that nobody has is compared with the hash of a password that nobody has, so that the
answer takes as long as for one that exists. At most two comparisons run at once, in threads of
their own: each takes 64 MiB.
"""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

from instar_core.errors import UserError

__all__ = ["LEAST", "check_password", "hash_password", "verify_password"]

LEAST: Final = 12
_MOST: Final = 1000
_pool = ThreadPoolExecutor(2, thread_name_prefix="password")

# Long enough for the rule above, and the first that anybody tries. Compared without case, and
# without what people add at the end.
_COMMON: Final = frozenset(
    """
    000000000000 0123456789 01234567890 012345678901 111111111111 1111111111111 121212121212
    123123123123 1234567890 12345678901 123456789012 1234567890123 12345678910 123456789123
    1234qwerasdfzxcv 1q2w3e4r5t6y 1q2w3e4r5t6y7u 1qaz2wsx3edc 1qaz2wsx3edc4rfv 987654321
    9876543210 aaaaaaaaaaaa abc123abc123 abcd1234abcd abcdefghijkl abcdefghijklm administrator
    adminadmin adminadminadmin adminpassword asdfasdfasdf asdfghjkl asdfghjklqwerty changeme
    changemechangeme changemenow correcthorsebatterystaple defaultpassword football
    footballfootball helloworld iloveyou iloveyouiloveyou instarinstar instarpassword letmein
    letmeinletmein letmeinplease masterpassword mypassword mypassworddd newpassword
    passw0rd passw0rdpassw0rd password passwordpassword passwordadmin passwordone princess
    princessprincess q1w2e3r4t5y6 qazwsxedcrfv qwer1234qwer qwerasdfzxcv qwerty qwertyqwerty
    qwertyuiop qwertyuiopasdf qwertyuiopasdfghjkl qwertyuiop[] secretpassword secretsecret
    sunshine sunshinesunshine superadmin temporarypassword testpassword testtesttest trustno1
    unbelievable welcome welcomewelcome welcometo yourpassword zaq12wsxcde3 zxcvbnm
    zxcvbnmzxcvbnm
    """.split()
)
_ENDINGS: Final = "0123456789!?.*#$@-_+"


def check_password(password: str, *, email: str = "") -> None:
    """Refuses passwords that are guessed first.

    Raises:
        UserError: If it is too short, too long, common, one character repeated, or the address.
    """
    if not LEAST <= len(password) <= _MOST:
        raise UserError(
            f"a password has {LEAST} to {_MOST} characters; this one has {len(password)}.",
            remedy="A few unrelated words are long enough and easy to keep in mind.",
        )
    plain = unicodedata.normalize("NFKC", password).casefold()
    stem = plain.rstrip(_ENDINGS).lstrip(_ENDINGS)
    names = {email.casefold(), email.casefold().partition("@")[0]} - {""}
    if len(set(plain)) < 4 or {plain, stem} & (_COMMON | names):
        raise UserError(
            "this password is among the first that are guessed.",
            remedy="Choose another: a few unrelated words, for example.",
        )


async def hash_password(password: str) -> str:
    """What is stored of a password: argon2id with its own salt and its costs in it."""
    return await asyncio.get_running_loop().run_in_executor(_pool, _hash, password)


async def verify_password(stored: str, password: str) -> bool:
    """Whether a password belongs to a stored hash; takes as long where ``stored`` is empty."""
    return await asyncio.get_running_loop().run_in_executor(_pool, _verify, stored, password)


def _hash(password: str) -> str:
    from argon2 import PasswordHasher

    return PasswordHasher().hash(_normal(password))


def _verify(stored: str, password: str) -> bool:
    from argon2 import PasswordHasher
    from argon2.exceptions import InvalidHashError, VerificationError

    against = stored or _nobodys()
    try:
        fits = PasswordHasher().verify(against, _normal(password))
    except (VerificationError, InvalidHashError):
        return False
    return fits and bool(stored)


@lru_cache(maxsize=1)
def _nobodys() -> str:
    return _hash(secrets.token_urlsafe(32))


def _normal(password: str) -> bytes:
    """The same bytes whichever keyboard composed the characters."""
    return unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")
