//! Addresses of images in Amazon ECR.

/// A training image's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUri(pub String);

/// The parts of an image's address in Amazon ECR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EcrImage<'a> {
    pub account: &'a str,
    pub region: &'a str,
    pub repository: &'a str,
    /// A tag, or a digest that begins with `sha256:`.
    pub reference: &'a str,
}

impl EcrImage<'_> {
    pub fn is_digest(&self) -> bool {
        self.reference.starts_with("sha256:")
    }
}

impl ImageUri {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `None` if it is not in Amazon ECR. Without tag or digest, it is `latest`.
    pub fn parts(&self) -> Option<EcrImage<'_>> {
        let (host, path) = self.0.split_once('/')?;
        let mut labels = host.split('.');
        let (account, dkr, ecr, region) = (
            labels.next()?,
            labels.next()?,
            labels.next()?,
            labels.next()?,
        );
        let is_ecr = dkr == "dkr"
            && matches!(ecr, "ecr" | "ecr-fips")
            && account.len() == 12
            && account.bytes().all(|byte| byte.is_ascii_digit())
            && host.contains("amazonaws.com");
        let (repository, reference) = match path.split_once('@') {
            // A digest wins over a tag before it.
            Some((named, digest)) => (named.split(':').next()?, digest),
            None => path.split_once(':').unwrap_or((path, "latest")),
        };
        (is_ecr && !repository.is_empty()).then_some(EcrImage {
            account,
            region,
            repository,
            reference,
        })
    }
}
