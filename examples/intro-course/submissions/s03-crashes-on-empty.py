def mean_above(l, x):
    a = 0
    b = 0
    c = []
    for i in range(0, len(l)):
        if l[i] > x:
            c.append(l[i])
    for i in range(0, len(c)):
        a = a + c[i]
        b = b + 1
    d = a / b
    return d
    return c
