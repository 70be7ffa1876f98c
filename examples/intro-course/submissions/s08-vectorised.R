# Mean of the numbers above the limit, NA if there are none.
mean_above <- function(numbers, limit) {
  selected <- numbers[numbers > limit]
  if (length(selected) == 0) {
    return(NA)
  }
  mean(selected)
}

mean_above(c(3, 8, 12, 5), 4)
