//! Polling: one process at a time asks a provider for news of a subscription (PROV-004, PROV-014, PROV-015).

use std::{sync::Arc, time::Duration};

use super::{Polled, ProviderContext, SharedProvider, SignalProvider, is_invalid};
use crate::{
    error::Error,
    runtime::{Bugle, Inner},
    storage::{ProviderSubscription, SubscriptionQuery},
};

/// A poll that takes longer has lost its subscriptions to others.
const CLAIM_TIME_MIN: Duration = Duration::from_secs(60);
/// After failures the wait grows to at most so many intervals.
const BACKOFF_MAX: u32 = 10;
/// How long a running poll may take when the runtime ends.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// Starts a provider, and polls it if it has an interval. Ends with the runtime.
pub(super) fn spawn(inner: &Arc<Inner>, agent_id: String, provider: SharedProvider) {
    let (weak, stop) = (Arc::downgrade(inner), inner.hub.stop.clone());
    inner.hub.tasks.spawn(async move {
        let context = || {
            let inner = weak.upgrade()?;
            Some(ProviderContext { bugle: Bugle { inner }, agent_id: agent_id.clone() })
        };
        let Some(first) = context() else { return };
        if let Err(error) = provider.start(&first).await {
            tracing::error!(provider = provider.id(), %error, "a signal provider could not start; it is not polled");
            return;
        }
        drop(first);
        let mut failures = 0_u32;
        while let Some(interval) = provider.poll_interval() {
            let wait = interval.max(Duration::from_millis(1)) * 2_u32.saturating_pow(failures).min(BACKOFF_MAX);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
            let Some(context) = context() else { break };
            if context.bugle.is_draining() {
                break;
            }
            let polling = poll(&context, &provider, interval);
            tokio::pin!(polling);
            let polled = tokio::select! {
                biased;
                polled = &mut polling => polled,
                () = stop.cancelled() => {
                    let _ = tokio::time::timeout(STOP_TIME_MAX, polling).await;
                    break;
                }
            };
            match polled {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(provider = provider.id(), failures, error, "a signal provider could not be polled");
                }
            }
        }
        if provider.poll_interval().is_none() {
            stop.cancelled().await;
        }
        provider.stop().await;
    });
}

async fn poll(context: &ProviderContext, provider: &SharedProvider, interval: Duration) -> Result<(), String> {
    let bugle = &context.bugle;
    let kept = bugle.provider_subscriptions();
    let now = bugle.inner.clock.now();
    let token = uuid::Uuid::new_v4().to_string();
    let query =
        SubscriptionQuery { agent_id: Some(context.agent_id.clone()), ..SubscriptionQuery::of_provider(provider.id()) };
    let until = now.plus((interval * 2).max(CLAIM_TIME_MIN));
    let held = kept.claim_polls(&query, &token, now, until).await.map_err(|error| error.to_string())?;
    if held.is_empty() {
        return Ok(());
    }
    let polled = provider.poll(&held, context).await;
    // The next poll of these, here or elsewhere, is one interval later. Clocks and timers differ by a little.
    let next = bugle.inner.clock.now().plus(interval / 10 * 9);
    let (found, failed) = match polled {
        Ok(found) => (found, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    for subscription in &held {
        let of_it = found.iter().find(|polled| polled.subscription_id == subscription.id);
        let told = match of_it {
            Some(polled) => tell(context, &**provider, subscription, polled).await,
            None => Ok(()),
        };
        // What could not be stored is found again by the next poll.
        let cursor = of_it.filter(|_| told.is_ok()).and_then(|polled| polled.cursor.as_deref());
        if let Err(error) = told {
            tracing::error!(provider = provider.id(), %error, "what a poll has found could not be stored");
        }
        kept.end_poll(&subscription.id, &token, cursor, next).await.map_err(|error| error.to_string())?;
    }
    failed.map_or(Ok(()), Err)
}

async fn tell(
    context: &ProviderContext,
    provider: &dyn SignalProvider,
    subscription: &ProviderSubscription,
    polled: &Polled,
) -> Result<(), Error> {
    let agent = context.bugle.agent(&context.agent_id)?;
    let new: Vec<_> = polled.events.iter().map(|event| event.notification(provider, subscription)).collect();
    match agent.accept_notifications(new.clone()).await {
        // Nothing is stored by then. What makes no notification is left out, else it would be found for ever.
        Err(error) if is_invalid(&error) => {}
        accepted => return accepted.map(drop),
    }
    for one in new {
        match agent.accept_notifications(vec![one]).await {
            Err(error) if is_invalid(&error) => {
                tracing::error!(provider = provider.id(), %error, "what a poll has found makes no notification");
            }
            accepted => drop(accepted?),
        }
    }
    Ok(())
}
