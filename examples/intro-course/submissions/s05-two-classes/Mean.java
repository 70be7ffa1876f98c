public class Mean {
    private int sum;
    private int count;

    void add(int value) {
        sum += value;
        count++;
    }

    // integer division: the decimals are lost
    int value() {
        return sum / count;
    }
}
