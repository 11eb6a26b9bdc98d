//! What every request passes first: CORS (HTTP-014 … HTTP-016) and auth (HTTP-210 … HTTP-215).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    call::{App, Caller},
    error::Failure,
};

const METHODS: HeaderValue = HeaderValue::from_static("GET,POST,PUT,PATCH,DELETE,OPTIONS");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Content-Type,Authorization,A2A-Version,x-mastra-client-type,x-mastra-dev-playground,Last-Event-ID",
);

pub(crate) async fn front(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = if request.method() == Method::OPTIONS {
        preflight()
    } else {
        match caller(&app, &request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                next.run(request).await
            }
            Err(failure) => failure.into_response(),
        }
    };
    share(&app, origin, response.headers_mut());
    response
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    response
}

/// Says which pages may read the answer.
fn share(app: &App, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let exposed = HeaderValue::from_static("Content-Length,X-Requested-With");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    let credentials = HeaderValue::from_static("true");
    match origin {
        Some(origin) if origin.to_str().is_ok_and(|origin| app.options.origins.allows(origin)) => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, credentials);
        }
        Some(_) => {}
        None if app.options.auth.is_on() => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, credentials);
        }
        None if app.options.origins == crate::Origins::Any => {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        }
        None => {}
    }
}

/// Whose request it is.
fn caller(app: &App, request: &Request) -> Result<Caller, Failure> {
    let path = request.uri().path();
    let below = path.strip_prefix(&*app.options.prefix);
    // A webhook proves itself by its signature (PROV-010).
    let is_webhook = below.is_some_and(|path| {
        path.strip_prefix("/signals/")
            .and_then(|rest| rest.strip_suffix("/webhook"))
            .is_some_and(|id| !id.contains('/'))
    });
    let open = path == "/health" || below == Some("/auth/capabilities") || is_webhook;
    if open || !app.options.auth.is_on() {
        return Ok(Caller::default());
    }
    let bearer = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, secret)| secret.trim().to_owned());
    let secret = bearer.or_else(|| {
        let query = request.uri().query().unwrap_or_default();
        let key = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "apiKey");
        key.map(|(_, value)| value.into_owned())
    });
    let token = secret.and_then(|secret| app.options.auth.find(&secret));
    match token {
        None => Err(Failure::new(StatusCode::UNAUTHORIZED, "Invalid or expired token")),
        Some(token) if !token.allow => Err(Failure::forbidden("Access denied")),
        // Nobody in particular would be everybody (HTTP-213).
        Some(token) if token.resource.is_empty() => {
            tracing::error!(user = %token.user, "a token has no resource; give it one");
            Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the user has no resource"))
        }
        Some(token) => {
            Ok(Caller { user: Some(token.user.as_str().into()), resource: Some(token.resource.as_str().into()) })
        }
    }
}
