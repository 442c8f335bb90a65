//! How much faster or slower jobs are than the law says, where a caller has a use for knowing it: by image, for
//! commits of different quality, and from machine to machine. What differs in a region that lives is in
//! [`crate::machines::lively`].

use clap::Args;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::machines::lively::normal;
use crate::machines::physics::Training;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Speeds {
    /// Images whose name contains a text run at a share of the usual speed: `--image-speed 4f2a9c1d=0.926`. May be
    /// repeated.
    #[arg(long, value_name = "TEXT=SHARE", value_parser = share_of)]
    image_speed: Vec<(String, f64)>,
    /// Standard deviation of the logarithm of a job's speed from one allocation to another.
    #[arg(long, default_value_t = 0.0)]
    host_sd: f64,
}

fn share_of(text: &str) -> Result<(String, f64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(name, share)| Some((name.to_owned(), share.parse().ok()?)));
    let pair = pair.filter(|(_, share)| (0.01..=100.0).contains(share));
    pair.ok_or_else(|| {
        format!("`{text}` is not <part of an image's name>=<share of its speed, 0.01 to 100>")
    })
}

impl Speeds {
    /// What an image trains at on the machine of a seed.
    pub(crate) fn of(&self, image: &str, law: Training, seed: u64) -> Training {
        let own = self
            .image_speed
            .iter()
            .filter(|(part, _)| image.contains(part));
        let share: f64 = own.map(|(_, share)| share).product();
        let host = (self.host_sd * normal(StdRng::seed_from_u64(seed))).exp();
        Training {
            tokens_per_second: law.tokens_per_second * share * host,
            ..law
        }
    }
}
