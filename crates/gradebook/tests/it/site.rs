//! A gradebook that is served on loopback, and a client that has been let in.

use std::sync::Arc;

use reqwest::{Client, RequestBuilder, Response};
use tandem_gradebook::Gradebook;
use tempfile::TempDir;
use tokio::net::TcpListener;

pub struct Site {
    pub gradebook: Gradebook,
    pub base: String,
    pub client: Client,
    cookie: String,
    folder: Arc<TempDir>,
}

/// The cookie that an address gives.
async fn enter(client: &Client, address: &str) -> Option<String> {
    let entered = client.get(address).send().await.unwrap();
    let cookie = entered.headers().get("set-cookie")?.to_str().unwrap();
    Some(cookie.split(';').next().unwrap().to_owned())
}

impl Site {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gradebook = Gradebook::open(&folder.path().join("g.sqlite")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = gradebook.router(false);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        let cookie = enter(&client, &gradebook.address(&base).unwrap())
            .await
            .unwrap();
        Self {
            gradebook,
            base,
            client,
            cookie,
            folder: Arc::new(folder),
        }
    }

    /// Where the gradebook lies.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The same file, as another process would have it.
    pub async fn reopened(&self) -> Self {
        let gradebook = Gradebook::open(&self.folder.path().join("g.sqlite")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = gradebook.router(false);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            cookie: enter(&self.client, &gradebook.address(&base).unwrap())
                .await
                .unwrap(),
            gradebook,
            base,
            client: self.client.clone(),
            folder: Arc::clone(&self.folder),
        }
    }

    /// The same for a browser that comes with another token.
    pub async fn with_token(&self, token: &str) -> Option<Self> {
        let address = format!("{}?token={token}", self.page(""));
        Some(Self {
            gradebook: self.gradebook.clone(),
            base: self.base.clone(),
            client: self.client.clone(),
            cookie: enter(&self.client, &address).await?,
            folder: Arc::clone(&self.folder),
        })
    }

    /// The address of a page; a path is below the gradebook's own, unless it begins with that.
    pub fn page(&self, path: &str) -> String {
        let home = self.gradebook.home();
        let path = path.strip_prefix(home).unwrap_or(path);
        format!("{}{home}{path}", self.base)
    }

    /// Asks for a page as a browser that was let in.
    pub async fn get(&self, path: &str) -> Response {
        let request = self.client.get(self.page(path));
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
            .post(self.page(path))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(pairs.join("&"));
        self.with_cookie(request)
    }

    pub fn with_cookie(&self, request: RequestBuilder) -> RequestBuilder {
        request.header("cookie", &self.cookie)
    }
}
