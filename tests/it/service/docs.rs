//! The documentation that the service serves: each page is there, looks as it should, and leads nowhere that is not.

use reqwest::{Method, StatusCode};
use sqlx::PgPool;

use crate::support::TestApp;

/// What a page links to, as it stands in its HTML.
fn links(page: &str) -> Vec<String> {
    let after = page.split("href=\"").skip(1);
    let links = after.filter_map(|rest| rest.split('"').next());
    links.map(str::to_owned).collect()
}

/// Where a link leads from a page.
fn target(page: &str, link: &str) -> String {
    let base = reqwest::Url::parse("http://here").unwrap();
    let base = base.join(page).unwrap();
    base.join(link).unwrap().path().to_owned()
}

fn is_page(path: &str) -> bool {
    std::path::Path::new(path)
        .extension()
        .is_some_and(|ending| ending == "md")
}

#[sqlx::test(migrations = false)]
async fn every_page_is_served_and_every_link_of_it_leads_somewhere(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (mut seen, mut left) = (Vec::new(), vec!["/docs/".to_owned()]);
    while let Some(path) = left.pop() {
        seen.push(path.clone());
        let (status, body) = test.send(test.request(Method::GET, &path, "")).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        let page = body.as_str().unwrap_or_default();
        if !is_page(&path) && path != "/docs/" {
            continue;
        }
        assert!(page.contains("<main><h1>"), "{path}: {page:.400}");
        let inside = links(page)
            .into_iter()
            .filter(|link| !link.starts_with("http"));
        // The dashboard is not built here.
        for link in inside
            .map(|link| target(&path, &link))
            .filter(|link| link != "/")
        {
            if !seen.contains(&link) && !left.contains(&link) {
                left.push(link);
            }
        }
    }
    let pages = seen.iter().filter(|path| is_page(path)).count();
    assert!(pages > 20, "{seen:#?}");
    assert!(seen.contains(&"/docs/api/".to_owned()));
    let (status, problem) = test
        .send(test.request(Method::GET, "/docs/nothing.md", ""))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        problem["detail"],
        "there is no such page; /docs/ lists all of them"
    );
}
