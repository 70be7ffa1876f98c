# mean of the numbers above the limit
def mean_above(numbers, limit):
    total = 0
    count = 0
    for n in numbers:
        if n >= limit:
            total = total + n
            count = count + 1
    if count == 0:
        return 0
    return total / count


print(mean_above([3, 8, 12, 5], 4))
