"""The awaited twins of a remote session: for each name that asks the server, `name_async`."""

from __future__ import annotations

from holdfast.client import history as history_flows
from holdfast.client import lifecycle as lifecycle_flows
from holdfast.client import runs as run_flows
from holdfast.client import state as state_flows
from holdfast.client.base import Remote
from holdfast.client.requests import async_method


class AwaitedNames(Remote):
    """The `_async` methods of `RemoteSession`, except those that stream."""

    run_async = async_method(run_flows.run)
    json_async = async_method(run_flows.json)
    resume_async = async_method(run_flows.resume)
    retry_async = async_method(run_flows.retry)
    pending_async = async_method(run_flows.pending)
    approve_async = async_method(run_flows.approve)
    deny_async = async_method(run_flows.deny)
    answer_async = async_method(run_flows.answer)
    unfinished_async = async_method(run_flows.unfinished)
    replay_async = async_method(run_flows.replay)

    messages_async = async_method(history_flows.messages)
    history_async = async_method(history_flows.history)
    length_async = async_method(history_flows.length)
    add_message_async = async_method(history_flows.add_message)
    add_messages_async = async_method(history_flows.add_messages)
    send_message_async = async_method(history_flows.send_message)
    clear_async = async_method(history_flows.clear)
    search_async = async_method(history_flows.search)
    rewind_async = async_method(history_flows.rewind)
    events_async = async_method(history_flows.events)
    verify_async = async_method(history_flows.verify)
    export_async = async_method(history_flows.export)
    to_dict_async = async_method(history_flows.to_dict)
    fork_async = async_method(history_flows.fork)
    forks_async = async_method(history_flows.forks)
    parent_async = async_method(history_flows.parent)
    compare_async = async_method(history_flows.compare)
    brief_async = async_method(history_flows.brief)
    successor_async = async_method(history_flows.successor)

    set_state_async = async_method(state_flows.set_state)
    put_state_async = async_method(state_flows.set_state)
    get_state_async = async_method(state_flows.get_state)
    delete_state_async = async_method(state_flows.delete_state)
    update_state_async = async_method(state_flows.update_state)
    scope_state_async = async_method(state_flows.scope_state)
    state_at_async = async_method(state_flows.state_at)
    state_async = async_method(state_flows.state)

    change_async = async_method(lifecycle_flows.change)
    status_async = async_method(lifecycle_flows.status)
    head_async = async_method(lifecycle_flows.head)
    title_async = async_method(lifecycle_flows.title)
    system_async = async_method(lifecycle_flows.system)
    metadata_async = async_method(lifecycle_flows.metadata)
    work_dir_async = async_method(lifecycle_flows.work_dir)
    active_agent_async = async_method(lifecycle_flows.active_agent)
    updated_at_async = async_method(lifecycle_flows.updated_at)
    retention_async = async_method(lifecycle_flows.retention)
    held_async = async_method(lifecycle_flows.held)
    usage_async = async_method(lifecycle_flows.usage)
    cost_async = async_method(lifecycle_flows.cost)
    budget_async = async_method(lifecycle_flows.budget)
    pause_async = async_method(lifecycle_flows.pause)
    close_async = async_method(lifecycle_flows.close)
    archive_async = async_method(lifecycle_flows.archive)
    reopen_async = async_method(lifecycle_flows.reopen)
    prune_async = async_method(lifecycle_flows.prune)
    undo_prune_async = async_method(lifecycle_flows.undo_prune)
    context_async = async_method(lifecycle_flows.context)
    hold_async = async_method(lifecycle_flows.hold)
    release_async = async_method(lifecycle_flows.release)
    redact_async = async_method(lifecycle_flows.redact)
    erase_async = async_method(lifecycle_flows.erase)
