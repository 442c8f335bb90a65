//! Cargo does not see files that are added to a folder: a new dashboard must be embedded anew.

fn main() {
    println!("cargo::rerun-if-changed=../../dashboard/dist");
}
