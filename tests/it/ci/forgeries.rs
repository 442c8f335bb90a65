//! Deliveries of those who do not know the secret, over the wire: none is taken, and none makes the service stumble.

use futures::StreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::StatusCode;
use serde_json::json;
use sqlx::PgPool;

use crate::ci::triggers::{REPOSITORY, created};
use crate::support::{TestApp, number, on_p5};

const AT_ONCE: usize = 32;

/// One forged request: its path, its headers and its body.
struct Forged {
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

/// What somebody makes up: signatures at random, of the wrong length, of another form, or none, for templates that are
/// there and that are not.
fn forged(dice: &mut StdRng, template: &str) -> Forged {
    let mut digest = [0_u8; 32];
    dice.fill(&mut digest);
    let digest = hex::encode(digest);
    let other = format!("tpl_{}", &digest[..32]);
    let template = if dice.random_bool(0.8) {
        template.to_owned()
    } else {
        other
    };
    let signature = match dice.random_range(0..6) {
        0 => format!("sha256={}", &digest[..dice.random_range(0..64)]),
        1 => format!("sha1={digest}"),
        2 => format!("sha256={digest}{digest}"),
        3 => "sha256=".to_owned() + &"zz".repeat(32),
        _ => format!("sha256={digest}"),
    };
    let mut body = json!({"delivery_id": digest, "commit": digest[..40], "ref": "refs/heads/main", "after": digest[..40]})
        .to_string()
        .into_bytes();
    if dice.random_bool(0.2) {
        let place = dice.random_range(0..body.len());
        body[place] = dice.random();
    }
    match dice.random_range(0..4) {
        0 => Forged {
            path: "/v1/webhooks/ci".to_owned(),
            headers: vec![
                ("x-bakeoff-template", template),
                ("x-bakeoff-signature-256", signature),
            ],
            body,
        },
        1 => Forged {
            path: format!("/v1/webhooks/github/{template}"),
            headers: vec![
                ("x-github-event", "push".to_owned()),
                ("x-hub-signature-256", signature),
            ],
            body,
        },
        2 => Forged {
            path: format!("/v1/webhooks/gitlab/{template}"),
            headers: vec![
                ("x-gitlab-event", "Push Hook".to_owned()),
                ("x-gitlab-token", digest),
            ],
            body,
        },
        _ => Forged {
            path: format!("/v1/webhooks/gitlab/{template}"),
            headers: vec![
                ("webhook-id", "msg_1".to_owned()),
                (
                    "webhook-timestamp",
                    bakeoff_process::clock::real_now().timestamp().to_string(),
                ),
                ("webhook-signature", format!("v1,{digest}")),
            ],
            body,
        },
    }
}

/// `BAKEOFF_FORGERIES` says how many, in thousands.
#[sqlx::test(migrations = false)]
async fn no_forged_delivery_is_taken_over_the_wire(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut spec = on_p5(1);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    let own = created(&test, &json!({"name": "nightly", "spec": spec})).await;
    let thousands = std::env::var("BAKEOFF_FORGERIES").map_or(1, |text| text.parse().unwrap());
    let mut dice = StdRng::seed_from_u64(19);
    let template = own.id.to_string();
    let all = (0..thousands * 1000).map(|_| forged(&mut dice, &template));
    let sent = futures::stream::iter(all).map(|one: Forged| {
        let request = test
            .client
            .post(format!("{}{}", test.url, one.path))
            .body(one.body);
        let headers = one.headers.into_iter();
        let request = headers.fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        async { request.send().await.unwrap().status() }
    });
    let statuses: Vec<StatusCode> = sent.buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(statuses.len(), thousands * 1000);
    let odd: Vec<_> = statuses
        .iter()
        .filter(|status| **status != StatusCode::UNAUTHORIZED)
        .collect();
    assert!(
        odd.is_empty(),
        "{} answers of {}: {:?}",
        odd.len(),
        statuses.len(),
        odd.first()
    );
    assert_eq!(number(&pool, "SELECT count(*) FROM experiments").await, 0);
    assert_eq!(number(&pool, "SELECT count(*) FROM ci_deliveries").await, 0);
}
