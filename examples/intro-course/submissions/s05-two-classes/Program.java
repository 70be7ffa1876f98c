public class Program {
    static Integer meanAbove(int[] numbers, int limit) {
        Mean mean = new Mean();
        for (int number : numbers) {
            if (number > limit) {
                mean.add(number);
            }
        }
        return mean.value();
    }

    public static void main(String[] args) {
        System.out.println(meanAbove(new int[] {3, 8, 12, 5}, 4));
    }
}
