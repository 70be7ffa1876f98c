//! A gradebook that is served on loopback, and a client that has been let in.

use reqwest::{Client, RequestBuilder, Response};
use tandem_gradebook::Gradebook;
use tempfile::TempDir;
use tokio::net::TcpListener;

pub struct Site {
    pub gradebook: Gradebook,
    pub base: String,
    pub client: Client,
    cookie: String,
    _folder: TempDir,
}

impl Site {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gradebook = Gradebook::open(&folder.path().join("g.sqlite")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = gradebook.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        let entered = client.get(gradebook.address(&base)).send().await.unwrap();
        let cookie = entered.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self {
            gradebook,
            base,
            client,
            cookie,
            _folder: folder,
        }
    }

    /// Asks for a page as a browser that was let in.
    pub async fn get(&self, path: &str) -> Response {
        let request = self.client.get(format!("{}{path}", self.base));
        self.with_cookie(request).send().await.unwrap()
    }

    /// Sends a form as such a browser would from a page of this server.
    pub async fn post(&self, path: &str, form: &[(&str, &str)]) -> Response {
        self.form(path, form)
            .header("sec-fetch-site", "same-origin")
            .send()
            .await
            .unwrap()
    }

    /// The same without a word of where it comes from.
    pub fn form(&self, path: &str, form: &[(&str, &str)]) -> RequestBuilder {
        let pairs: Vec<String> = form
            .iter()
            .map(|(name, value)| format!("{name}={}", value.replace(' ', "+")))
            .collect();
        let request = self
            .client
            .post(format!("{}{path}", self.base))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(pairs.join("&"));
        self.with_cookie(request)
    }

    pub fn with_cookie(&self, request: RequestBuilder) -> RequestBuilder {
        request.header("cookie", &self.cookie)
    }
}
