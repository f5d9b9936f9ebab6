"""What a budget is made of: amounts, the account they are kept in, prices, sizes, and the last answer."""
