"""What undrift adds inside the process of a SuperLink, around Flower's own handlers.

`connections` bounds connections without a request, `guard` decides who may ask for what, `orders`
what a site may store, `deliveries` and `polls` how requests and answers reach whom they are for,
and `database` how Flower's database is used.
"""
