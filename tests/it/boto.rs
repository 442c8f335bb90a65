//! An independent client, boto3 unmodified, against the region: `tests/boto3/region.py` says what it checks.

use std::process::Command;

use crate::support::Region;

#[test]
fn boto3_meets_the_real_services_rules() {
    let Ok(modules) = std::env::var("BAKEOFF_TEST_PYTHONPATH") else {
        println!("skipped: BAKEOFF_TEST_PYTHONPATH names no boto3 (`cargo xtask test` installs it)");
        return;
    };
    let region = Region::start(&[]);
    let output = Command::new("python3")
        .arg("tests/boto3/region.py")
        .args([&region.url, &region.s3_url])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONPATH", modules)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("boto3: 8 checks held"), "{text}");
}
