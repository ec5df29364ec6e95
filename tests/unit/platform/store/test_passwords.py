"""Passwords: which are refused, how they are kept, and that nobody's takes as long as any."""

from __future__ import annotations

import asyncio

import pytest

from instar.store import passwords
from instar.store.passwords import check_password, hash_password, verify_password
from instar_core.errors import UserError


@pytest.mark.parametrize(
    "password",
    [
        "",
        "elevenchars",
        "x" * 1001,
        "password1234",
        "Password1234!",
        "PASSWORDPASSWORD",
        "qwertyuiop123",
        "123456789012",
        "aaaaaaaaaaaaaaaa",
        "abababababab",
        "anna.example1",
        "anna.example@example.org",
        "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff441234",
    ],
)
def test_passwords_that_are_guessed_first_are_refused(password: str) -> None:
    with pytest.raises(UserError) as refused:
        check_password(password, email="anna.example@example.org")
    assert not password or password not in str(refused.value)


@pytest.mark.parametrize("password", ["plum kettle orbit 7", "трава и камень", "wT9$kq!vLm2z"])
def test_other_passwords_are_taken(password: str) -> None:
    check_password(password, email="anna@example.org")


def test_a_hash_has_its_own_salt_and_fits_one_password() -> None:
    async def work() -> None:
        first, second = await hash_password("plum kettle é"), await hash_password("plum kettle é")
        assert first != second and first.startswith("$argon2id$")
        assert await verify_password(first, "plum kettle e\u0301"), "however it was typed"
        assert not await verify_password(first, "plum kettle e")
        assert not await verify_password("no hash at all", "plum kettle é")
        assert not await verify_password("", "")

    asyncio.run(work())


def test_an_unknown_persons_password_is_compared_like_a_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from argon2 import PasswordHasher

    seen: list[str] = []
    verify = PasswordHasher.verify

    def noted(self: PasswordHasher, stored: str | bytes, password: str | bytes) -> bool:
        seen.append(str(stored))
        return bool(verify(self, stored, password))

    monkeypatch.setattr(PasswordHasher, "verify", noted)
    asyncio.run(verify_password("", "plum kettle orbit 7"))
    asyncio.run(verify_password(passwords._hash("x" * 12), "plum kettle orbit 7"))
    costs = [one.rpartition("$")[0].rpartition("$")[0] for one in seen]
    assert len(seen) == 2 and costs[0] == costs[1], "the same costs, whoever it is"
