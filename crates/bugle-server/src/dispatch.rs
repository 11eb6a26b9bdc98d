//! From an HTTP request to a handler's call: path, query and body are read and checked here and nowhere else.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{RawPathParams, Request},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use bugle::json::{Object, Value};
use futures::{FutureExt, StreamExt};

use crate::{
    call::{App, Call, Caller},
    error::{Failure, Place},
    routes::Route,
    shape::{Field, Issue, Shape},
};

/// How much of a refused body is read away so that the client gets to read the refusal.
const DRAIN_LEN_MAX: usize = 64 * 1024 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a body may pause.
const PIECE_TIME_MAX: Duration = Duration::from_mins(1);

/// Answers one request to `route`.
pub(crate) async fn dispatch(
    app: Arc<App>,
    route: &'static Route,
    params: Result<RawPathParams, Response>,
    request: Request,
) -> Response {
    let params = match params {
        Ok(params) => params,
        Err(response) => return response,
    };
    let answer = AssertUnwindSafe(async {
        let call = read(app, route, &params, request).await?;
        (route.handler)(call).await
    });
    match answer.catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(failure)) => failure.into_response(),
        Err(_) => {
            tracing::error!(path = route.path, "a handler panicked");
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the server's log").into_response()
        }
    }
}

async fn read(app: Arc<App>, route: &Route, params: &RawPathParams, request: Request) -> Result<Call, Failure> {
    let (parts, body) = request.into_parts();
    let path = params.iter().map(|(name, value)| (name.into(), value.to_owned())).collect();
    let query = read_query(route.query, parts.uri.query().unwrap_or_default());
    let mut raw = Bytes::new();
    let body = match (route.body, route.raw) {
        (Some(shape), _) => read_body(shape, &parts, body, app.options.max_body).await?,
        (None, Some(limit)) => {
            raw = collect(body, limit).await?;
            Object::new()
        }
        (None, None) => Object::new(),
    };
    let issues = Shape::Fields(route.query).check(&Value::Object(query.clone()));
    if !issues.is_empty() {
        return Err(Failure::invalid(Place::Query, issues));
    }
    let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
    Ok(Call { app, caller, path, query, body, raw, headers: parts.headers })
}

async fn read_body(shape: &Shape, parts: &Parts, body: Body, limit: usize) -> Result<Object, Failure> {
    let bytes = collect(body, limit).await?;
    let is_json = parts
        .headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("application/json"));
    if bytes.is_empty() || !is_json {
        if shape.may_be_absent() {
            return Ok(Object::new());
        }
        let issue = Issue::new("root", "Invalid input: expected object, received undefined");
        return Err(Failure::invalid(Place::Body, vec![issue]));
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Failure::invalid(Place::Body, vec![Issue::new("body", error.to_string())]))?;
    let issues = shape.check(&value);
    match value {
        Value::Object(fields) if issues.is_empty() => Ok(fields),
        _ => Err(Failure::invalid(Place::Body, issues)),
    }
}

/// The whole body, if it is not too long (HTTP-007).
async fn collect(body: Body, limit: usize) -> Result<Bytes, Failure> {
    let announced = body.size_hint().lower();
    let mut stream = body.into_data_stream();
    let mut all = Vec::with_capacity(usize::try_from(announced).unwrap_or(usize::MAX).min(limit));
    let mut too_long = announced > limit as u64;
    while !too_long {
        let piece = tokio::time::timeout(PIECE_TIME_MAX, stream.next()).await;
        match piece.map_err(|_| Failure::bad_request("the rest of the body did not come"))? {
            Some(Ok(piece)) if all.len() + piece.len() > limit => too_long = true,
            Some(Ok(piece)) => all.extend_from_slice(&piece),
            Some(Err(_)) => return Err(Failure::bad_request("the request ended before its body was complete")),
            None => return Ok(all.into()),
        }
    }
    drop(all);
    // Closing the connection now would make the client's write fail before it reads the answer.
    let drain = async {
        let mut drained = 0;
        while let Some(Ok(piece)) = stream.next().await {
            drained += piece.len();
            if drained > DRAIN_LEN_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, drain).await;
    Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "Request body too large"))
}

/// The query parameters that a route knows, by their shapes. `a[b]=c` is the field `b` of the object `a`.
fn read_query(fields: &[Field], query: &str) -> Object {
    let mut values = Object::new();
    for (name, text) in form_urlencoded::parse(query.as_bytes()) {
        let (name, inner) = match name.split_once('[').map(|(outer, rest)| (outer, rest.strip_suffix(']'))) {
            Some((outer, Some(inner))) => (outer.to_owned(), Some(inner.to_owned())),
            _ => (name.into_owned(), None),
        };
        let Some(field) = fields.iter().find(|field| field.name == name) else { continue };
        match inner {
            None => {
                values.insert(name, field.shape.read_text(&text));
            }
            Some(inner) => {
                let object = values.entry(name).or_insert_with(|| Value::Object(Object::new()));
                if let Value::Object(object) = object {
                    object.insert(inner, Value::String(text.into_owned()));
                }
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use bugle::json::json;

    use super::*;
    use crate::shape::optional;

    #[test]
    fn http_151_query_values_are_read_by_their_shapes() {
        static ORDER: Shape = Shape::Fields(&[optional("field", &Shape::Text)]);
        static ORDER_BY: Shape = Shape::Either(&[&Shape::Text, &ORDER]);
        static FIELDS: [Field; 4] = [
            optional("page", &Shape::Whole(0)),
            optional("orderBy", &ORDER_BY),
            optional("metadata", &Shape::Map(&Shape::Any)),
            optional("name", &Shape::Text),
        ];
        let read = |query: &str| Value::Object(read_query(&FIELDS, query));
        assert_eq!(read("page=2&name=7&other=1"), json!({"page": 2, "name": "7"}));
        assert_eq!(read("page=-1"), json!({"page": -1}));
        assert_eq!(read("page=x"), json!({"page": "x"}));
        let ordered = json!({"orderBy": {"field": "createdAt"}});
        assert_eq!(read("orderBy%5Bfield%5D=createdAt"), ordered);
        assert_eq!(read("orderBy=%7B%22field%22%3A%22createdAt%22%7D"), ordered);
        assert_eq!(read("orderBy=createdAt"), json!({"orderBy": "createdAt"}));
        assert_eq!(read("metadata=%7B%22a%22%3A1%7D"), json!({"metadata": {"a": 1}}));
    }
}
