"""Mean of the numbers above a limit."""


def mean_above(numbers, limit):
    """Return the mean of all numbers greater than limit, or None if there are none."""
    selected = [number for number in numbers if number > limit]
    if not selected:
        return None
    return sum(selected) / len(selected)


print(mean_above([3, 8, 12, 5], 4))
print(mean_above([1, 2], 10))
