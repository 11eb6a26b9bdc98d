//! The route table. An entry routes and describes at once, so that the OpenAPI document is what is served (HTTP-017).

mod agents;
mod memory;
mod messages;
mod notifications;
mod runs;
mod suspended;
mod system;
mod threads;
mod tools;

use std::sync::Arc;

use axum::{
    Router,
    extract::{RawPathParams, Request},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter, on},
};
use bugle::{
    Bugle,
    json::{Object, Value, json},
};
use futures::future::BoxFuture;

use crate::{
    call::{App, Call, Resumed},
    dispatch::dispatch,
    error::{Failure, Place},
    front::front,
    options::ServerOptions,
    shape::{Field, Issue, Shape},
};

/// What a handler gives.
pub(crate) type Answer = Result<Response, Failure>;

/// One route.
pub(crate) struct Route {
    pub(crate) method: Verb,
    /// Below the prefix, parameters as `{name}`.
    pub(crate) path: &'static str,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [Field],
    pub(crate) body: Option<&'static Shape>,
    /// The body is handed over as its bytes, at most so many.
    pub(crate) raw: Option<usize>,
    /// Answers an event stream.
    pub(crate) streams: bool,
    pub(crate) handler: fn(Call) -> BoxFuture<'static, Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Patch,
    Delete,
}

impl Verb {
    const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// Declares a route: `route!(Post "/path" "summary", handler, query: …, body: …, streams)`.
macro_rules! route {
    ($method:ident $path:literal $summary:literal, $handler:path
        $(, query: $query:expr)? $(, body: $body:expr)? $(, streams: $streams:literal)?) => {
        $crate::routes::Route {
            method: $crate::routes::Verb::$method,
            path: $path,
            summary: $summary,
            query: route!(@or $crate::fields::CONTEXT_QUERY $(, $query)?),
            body: route!(@body $($body)?),
            raw: None,
            streams: route!(@or false $(, $streams)?),
            handler: |call| Box::pin($handler(call)),
        }
    };
    (@or $default:expr) => { $default };
    (@or $default:expr, $given:expr) => { $given };
    (@body) => { None };
    (@body $body:expr) => { Some(&$body) };
}
use route;

/// All routes below the prefix.
pub(crate) fn table() -> impl Iterator<Item = &'static Route> {
    [
        agents::ROUTES,
        runs::ROUTES,
        suspended::ROUTES,
        messages::ROUTES,
        notifications::ROUTES,
        notifications::WEBHOOK_ROUTES,
        threads::ROUTES,
        tools::ROUTES,
        memory::ROUTES,
        system::ROUTES,
    ]
    .into_iter()
    .flatten()
}

/// A router that serves `bugle`: everything below `options.prefix`, and `/health`.
///
/// Mount it, merge it, or hand it to [`serve`](crate::serve).
pub fn router(bugle: Bugle, options: ServerOptions) -> Router {
    let document = document(&options).to_string().into();
    let app = Arc::new(App { bugle, options, document, resumed: Resumed::default() });
    let mut by_path: indexmap::IndexMap<&str, MethodRouter<Arc<App>>> = indexmap::IndexMap::new();
    for route in table() {
        let state = app.clone();
        let handler = move |params: Result<RawPathParams, _>, request: Request| {
            let params = params.map_err(|_| bad_path());
            dispatch(state.clone(), route, params, request)
        };
        let method = on(route.method.filter(), handler);
        let known = by_path.shift_remove(route.path);
        by_path.insert(route.path, known.map_or_else(|| method.clone(), |known| known.merge(method.clone())));
    }
    let mut router = Router::new();
    for (path, methods) in by_path {
        router = router.route(&format!("{}{path}", app.options.prefix), methods);
    }
    router
        .route("/health", axum::routing::get(system::health))
        .fallback(nothing_here)
        .method_not_allowed_fallback(nothing_here)
        .layer(middleware::from_fn_with_state(app.clone(), front))
        .with_state(app)
}

/// HTTP-003.
async fn nothing_here() -> Response {
    Failure::not_found("Not Found").into_response()
}

fn bad_path() -> Response {
    let issue = Issue::new("root", "the path is not UTF-8 once its percent signs are decoded");
    Failure::invalid(Place::Path, vec![issue]).into_response()
}

/// The OpenAPI document of the table.
fn document(options: &ServerOptions) -> Value {
    let mut paths = Object::new();
    for route in table() {
        let entry = paths.entry(route.path).or_insert_with(|| Value::Object(Object::new()));
        entry[route.method.key()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Bugle", "version": options.version},
        "servers": [{"url": options.prefix}],
        "paths": paths,
    })
}

fn operation(route: &Route) -> Value {
    let mut parameters = Vec::new();
    for name in path_parameters(route.path) {
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    }
    for field in route.query {
        let schema = field.shape.schema();
        parameters.push(json!({"name": field.name, "in": "query", "required": field.required, "schema": schema}));
    }
    let kind = if route.streams { "text/event-stream" } else { "application/json" };
    let refusal = json!({"description": "Refused: `{\"error\": text}`", "content": {"application/json": {"schema": {
        "type": "object",
        "properties": {"error": {"type": "string"}, "issues": {"type": "array", "items": {"type": "object"}}},
        "required": ["error"],
    }}}});
    let mut operation = json!({
        "summary": route.summary,
        "tags": [route.path.split('/').nth(1).unwrap_or_default()],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {kind: {"schema": {}}}}, "default": refusal},
    });
    if route.raw.is_some() {
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": {}}}});
    }
    if let Some(shape) = route.body {
        operation["requestBody"] =
            json!({"required": !shape.may_be_absent(), "content": {"application/json": {"schema": shape.schema()}}});
    }
    operation
}

fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// A JSON answer.
pub(crate) fn answer(value: impl serde::Serialize) -> Response {
    axum::Json(value).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_017_every_route_is_described_with_its_parameters() {
        let document = document(&ServerOptions::default());
        for route in table() {
            let operation = &document["paths"][route.path][route.method.key()];
            assert_eq!(operation["summary"], route.summary, "{}", route.path);
            let named = operation["parameters"].as_array().unwrap().iter().filter(|one| one["in"] == "path").count();
            assert_eq!(named, route.path.matches('{').count());
            assert_eq!(operation["requestBody"].is_object(), route.body.is_some() || route.raw.is_some());
        }
        let count: usize =
            document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
        assert_eq!(count, table().count(), "two routes share a method and a path");
    }
}
