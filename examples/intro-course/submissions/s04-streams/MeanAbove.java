import java.util.Arrays;
import java.util.OptionalDouble;

public class MeanAbove {
    /** Mean of all numbers greater than limit; empty if there are none. */
    static OptionalDouble meanAbove(double[] numbers, double limit) {
        return Arrays.stream(numbers).filter(number -> number > limit).average();
    }

    public static void main(String[] args) {
        double[] numbers = {3, 8, 12, 5};
        System.out.println(meanAbove(numbers, 4));
    }
}
