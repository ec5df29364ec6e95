"""Phrasings: what customers of an imaginary shop write, by the in-house queue that handles it.

The queue names say nothing about their subject on purpose: ``harbor`` handles money, ``lantern``
handles access and faults, ``anchor`` handles parcels. No model can guess them; they have to be
learned. Every phrasing is one group: it appears in one split only.
"""

from __future__ import annotations

__all__ = ["PHRASINGS", "QUEUES"]

QUEUES = ("harbor", "lantern", "anchor")

_HARBOR = """
I was charged twice for the same order.
My invoice shows the wrong VAT number.
The refund you promised has not reached my bank account.
Please cancel my subscription and stop billing me.
My credit card was declined although it is valid.
Why did the monthly price go up without notice?
I need a receipt for the payment I made last week.
The discount code was not applied at checkout.
You billed me for a plan that I never chose.
Can I pay by bank transfer instead of by card?
The amount on my statement differs from the amount I agreed to.
I want my money back for the unused months.
My company needs the bill in euros, not in dollars.
A charge from you appeared on my card and I do not know why.
How do I change the card that is charged every month?
The direct debit was taken three days too early.
I paid the invoice but it is still marked as overdue.
Please send me a corrected invoice with our new address.
Your reminder letter says I owe money, but I have paid.
I would like to switch from monthly to yearly payment.
The gift card balance was not subtracted from the total.
I was promised a free trial and was charged on the first day.
Two payments were taken for one booking.
The tax on my last bill seems far too high.
My payment failed and now I see a late fee.
Could you split the bill into two instalments?
I need last year's invoices for my accountant.
The refund came back smaller than the price I paid.
Please remove my saved bank details from your records.
The voucher I bought says it has no value.
My promotional credit disappeared from the balance.
We are tax exempt, yet tax was added to the bill.
The payment page says my card has expired, but it is new.
You debited my account after I had cancelled.
There is an unknown service fee on my invoice.
Please explain the extra costs on this month's bill.
I was charged in the wrong currency.
My bank reversed the payment, how can I pay again?
The student discount is missing from my bill.
I never got the cashback from the spring offer.
Can you put our purchase order number on the invoice?
The price in the basket was lower than what I paid.
My wallet top-up was taken but the balance is still zero.
Please confirm that you have received my payment.
I want a written quote before I pay for the upgrade.
The annual fee was renewed without asking me.
How much will I pay when I add two more seats?
My refund is pending for over three weeks.
I was billed for five users but we are three.
The invoice PDF has the wrong company name.
You took a deposit and never gave it back.
I think my bill counts the same item twice.
The checkout charged me shipping although it is free above fifty.
Please lower my bill, I downgraded weeks ago.
Can I get a partial refund for the broken month?
The debit mandate you sent has a wrong account number.
My invoice is missing and the accounts team is waiting.
I used the wrong card, please refund it and charge the other one.
The loyalty points were not taken off the price.
Why is there a currency conversion fee on my payment?
I entered the coupon but paid the full price.
The billing email goes to a colleague who has left.
My prepaid credit expired and I want it restored.
You charged the card of my late father.
The instalment plan shows one payment too many.
I was quoted ninety a year and charged one hundred and twenty.
The bill arrived twice with different totals.
Is it possible to postpone this month's payment?
I dispute the cancellation fee on my account.
The payment went through but no order was created.
Please pay the refund to a new bank account.
My employer wants an invoice dated in March.
The price for the family plan is not what the website says.
I need proof of payment for my insurance.
The automatic renewal charged an old price list.
Your system rejects my bank account number.
The balance on my account is negative and I do not know why.
I returned to the basic plan but still pay for premium.
Someone used my card on your site without my permission.
The credit note you issued does not match the invoice.
"""

_LANTERN = """
I cannot sign in with my password.
The app crashes as soon as I open it.
The reset link in your mail has expired.
I never receive the verification code on my phone.
The website shows a blank page after the update.
My account was locked after three attempts.
The search returns an error every time.
I forgot which email address I signed up with.
Two-factor sign-in stopped working with my new phone.
The dashboard takes minutes to load.
I get error 500 when I save my profile.
The export button does nothing.
My session ends every few minutes and I must log in again.
The mobile app does not sync with the website.
My colleague was removed and can still log in.
The upload stops at ninety-nine percent.
I see someone else's name when I log in.
Push messages have stopped since yesterday.
The page keeps asking me to accept cookies and never opens.
My login works on the laptop but not on the tablet.
The system says that my user name is already taken.
I cannot change my email address in the settings.
The service has been down for our whole office since this morning.
The calendar shows all events one hour late.
Our single sign-on sends everyone to an error page.
The app is stuck on the loading screen.
I was logged out everywhere and cannot get back in.
The captcha never accepts my answer.
My profile picture cannot be uploaded.
The report is empty although there is data.
The API returns unauthorized with a valid key.
The password rules reject every password I try.
My account seems to have been hacked.
The video freezes after ten seconds.
I cannot open attachments in the message centre.
The new version removed my saved filters.
Typing in the chat window is extremely slow.
The button to confirm is greyed out.
The dark theme makes the text unreadable.
I cannot install the update on my phone.
The screen reader does not work with the menu.
Our integration stopped receiving webhooks last night.
My invitation to join the team has expired.
The login page says that my browser is too old.
I changed my phone number and no longer get the code.
The site is unreachable from our network.
The desktop program closes without any message.
My data disappeared after I switched devices.
I am asked for an access code that I never had.
The form loses everything I typed when I press back.
Fingerprint unlock no longer works in the app.
The map does not show on my screen.
There is a security warning when I open your site.
The language switches to French by itself.
I cannot delete my old account.
The printed report cuts off the last column.
The test server rejects our certificate.
Notifications arrive hours too late.
The backup cannot be restored.
I cannot add a second user to our workspace.
The file download ends with a network error.
The voice input understands nothing any more.
My administrator rights are gone.
The app drains my battery in an hour.
The recovery codes you gave me are refused.
Saving a draft logs me out.
The table cannot be sorted since Monday.
My password manager cannot fill in your form.
The beta feature is visible but cannot be switched on.
I get the message that too many devices are connected.
The link in the welcome mail leads nowhere.
Old messages show up as unread again and again.
The camera permission prompt returns at every start.
I cannot see the projects that were shared with me.
The server answers with a timeout in the afternoon.
The import wizard fails on the second step.
My username contains a typo and I cannot sign in.
Scrolling makes the whole page flicker.
The keyboard shortcuts have stopped responding.
I am stuck in a loop between the login and the home page.
"""

_ANCHOR = """
My parcel has not arrived.
The box came damaged and the glass is broken.
I received the wrong size.
Where is my delivery, the tracking has not moved for days?
I would like to send the shoes back.
The courier left the package in the rain.
One item is missing from my shipment.
Can you deliver to my neighbour instead?
I need to change the delivery address.
The tracking number you sent does not exist.
The driver never rang the bell.
The parcel was delivered to the wrong house.
How do I return a lamp that does not fit?
The return label cannot be printed at the post office.
My order was shipped to my old address.
You sent a blue shirt, I had ordered a green one.
The package is held at customs.
When will the sofa be delivered?
The delivery date was moved for the third time.
The box was empty when I opened it.
I want to exchange the jacket for a larger one.
The shipment contains somebody else's order.
Please leave the parcel at the pickup station.
The courier says that the address is incomplete.
Part of the furniture set was not in the delivery.
The vase arrived in a hundred pieces.
Can the goods be sent before Friday?
The parcel shop sent my package back.
I missed the delivery, can it be brought again?
The seal of the package was broken.
My returned item was never registered at your warehouse.
The wardrobe was delivered without screws.
I ordered two chairs and only one came.
The freight company wants a date for the pallet.
The carton is so heavy that I need help to bring it upstairs.
Please stop the shipment, I no longer need it.
The parcel is said to be delivered but I have nothing.
The flowers arrived withered.
I would like to collect the goods at your shop.
The food box was warm when it came.
The wrong colour of curtains was packed.
Express shipping took nine days.
The courier threw the parcel over the fence.
My order has been in preparation for two weeks.
The package is lying at a depot in another city.
How long do I have to send an item back?
The bicycle came with a bent wheel.
Can I combine two orders into one parcel?
The mattress smells and must be picked up.
The delivery note lists things I did not get.
The driver refused to take back the old fridge.
The return parcel was refused by your warehouse.
I am away next week, please hold the delivery.
The spare part does not fit my machine.
The parcel was left with a person I do not know.
My shipment is split into four boxes and one is lost.
The toy arrived without its batteries.
Which carrier brings the garden table?
The book has torn pages.
I sent the goods back weeks ago and heard nothing.
The screen of the television was cracked on arrival.
The delivery was signed for by a stranger.
Please send the replacement to my office.
The label on my box shows another customer's name.
The order was sent to the wrong country.
The packaging was torn and half of the tea had leaked out.
Can the carpet be delivered in the evening?
The lid of the pot is missing.
I got the same item twice in one box.
The parcel locker will not open with the code on the card.
The van came while I was at work.
My package went back to the sender by mistake.
The tiles were chipped in transport.
I want to return a gift without the original box.
The delivery window of eight hours is too long for me.
The plates were packed without any padding.
The second half of my order never left the warehouse.
The boots are two different sizes.
Your carrier lost my package.
The ladder does not fit through the door, please take it back.
"""


def _lines(block: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in block.strip().splitlines())


PHRASINGS: dict[str, tuple[str, ...]] = {
    "harbor": _lines(_HARBOR),
    "lantern": _lines(_LANTERN),
    "anchor": _lines(_ANCHOR),
}
"""Queue → its phrasings, all different."""
