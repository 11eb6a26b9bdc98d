//! Tools with which an agent subscribes its thread to something outside (PROV-016).

use serde_json::{Value, json};

use crate::{
    storage::SubscriptionQuery,
    tool::{Tool, ToolContext, ToolError},
};

/// `subscribe_<provider>` and `unsubscribe_<provider>`: bound to the calling run's agent, resource and thread, whatever the
/// model says.
pub fn subscription_tools(provider_id: &str) -> [Tool; 2] {
    let schema = || {
        json!({
            "type": "object",
            "properties": {"externalResourceId": {"type": "string", "minLength": 1, "description": "What to follow, as the provider names it."}},
            "required": ["externalResourceId"],
            "additionalProperties": false
        })
    };
    let (for_subscribe, for_unsubscribe) = (provider_id.to_owned(), provider_id.to_owned());
    let subscribe = Tool::json(format!("subscribe_{provider_id}"), move |input: Value, context: ToolContext| {
        let provider = for_subscribe.clone();
        async move {
            let (bugle, thread) = target(&context)?;
            let external = external(&input);
            let made = bugle.subscribe_provider(&context.agent_id, &provider, thread, external, None, None).await;
            let made = made.map_err(|error| ToolError::failed(error.to_string()))?;
            let durability = bugle.subscription_durability();
            Ok(json!({"subscribed": made.external_resource_id, "since": made.subscribed_at, "durability": durability}))
        }
    })
    .described(format!("Subscribes this conversation to events of {provider_id}; they arrive as notifications."))
    .with_input_schema(schema());
    let unsubscribe = Tool::json(format!("unsubscribe_{provider_id}"), move |input: Value, context: ToolContext| {
        let provider = for_unsubscribe.clone();
        async move {
            let (bugle, thread) = target(&context)?;
            let query = SubscriptionQuery {
                agent_id: Some(context.agent_id.clone()),
                resource_id: thread.resource_id.as_deref().map(str::to_owned),
                thread_id: Some(thread.thread_id.to_string()),
                external_resource_ids: vec![external(&input).to_owned()],
                ..SubscriptionQuery::of_provider(provider)
            };
            let ended = bugle.provider_subscriptions().unsubscribe(&query).await;
            let ended = ended.map_err(|error| ToolError::failed(error.to_string()))?;
            Ok(json!({"unsubscribed": ended > 0}))
        }
    })
    .described(format!("Ends this conversation's subscription to events of {provider_id}."))
    .with_input_schema(schema());
    [subscribe, unsubscribe]
}

fn external(input: &Value) -> &str {
    input.get("externalResourceId").and_then(Value::as_str).unwrap_or_default().trim()
}

fn target(context: &ToolContext) -> Result<(&crate::Bugle, &crate::ThreadKey), ToolError> {
    let thread = context.thread.as_ref().filter(|thread| thread.resource_id.is_some());
    let thread = thread.ok_or("a subscription belongs to a thread with a resource, and this call has none")?;
    Ok((context.runtime.as_ref().ok_or("subscribing needs a running agent")?, thread))
}
