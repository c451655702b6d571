"""How many calls of a peer may be on their way, or wait, before they are taken up.

    credits (pure)  what may be sent, and what is granted
    flow             the credit of one link, both ways, as frames say it

Answers and book-keeping cost nothing and are unknown here. Who waits for credit, and sends, is the link.
"""
