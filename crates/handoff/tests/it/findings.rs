//! That the tool which makes the input of the fuzz targets fails a test when one of them finds something.

use bolero::check;

#[test]
fn a_finding_fails_its_test() {
    let found = std::panic::catch_unwind(|| {
        check!()
            .with_type::<u8>()
            .for_each(|byte| assert!(*byte < 7, "found"));
    });
    assert!(found.is_err());
}
