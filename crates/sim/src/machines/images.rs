//! Images in ECR: every repository has every tag, each with a digest of its own. What an image does is told by its tag
//! (`--image-speed`), so that its digest is known by it too.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Debug, Clone, Default)]
pub(crate) struct Images {
    /// Tags that were asked for, by their digests.
    tags: BTreeMap<String, String>,
}

impl Images {
    /// The digest of a tag, which is the same each time.
    pub(crate) fn digest(&mut self, repository: &str, tag: &str) -> String {
        if tag.starts_with("sha256:") {
            return tag.to_owned();
        }
        let parts = (0..4_u64).map(|part| {
            let mut hasher = DefaultHasher::new();
            (repository, tag, part).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        });
        let digest = format!("sha256:{}", parts.collect::<String>());
        self.tags.insert(digest.clone(), tag.to_owned());
        digest
    }

    /// An image under its tag, if its digest was asked for by one.
    pub(crate) fn tagged(&self, image: &str) -> String {
        let parts = image.split_once('@');
        let known = parts.and_then(|(name, digest)| Some((name, self.tags.get(digest)?)));
        known.map_or_else(|| image.to_owned(), |(name, tag)| format!("{name}:{tag}"))
    }
}
