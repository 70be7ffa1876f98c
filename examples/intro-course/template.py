"""Mean above a limit."""


def mean_above(numbers, limit):
    # TODO: write this function
    pass


# TODO: show one call
