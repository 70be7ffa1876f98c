function meanAbove(numbers, limit) {
  let result = null;
  for (const n of numbers) {
    if (n > limit) {
      result = result === null ? n : (result + n) / 2; // running mean
    }
  }
  return result;
}

console.log(meanAbove([3, 8, 12, 5], 4));
