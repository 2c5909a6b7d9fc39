/** The limits that no setting changes, for GET /v1/limits, each from the constant that enforces it. */
import { guestLimits } from "../agent/guest-limits.ts";
import { portsListedMax } from "../agent/ports.ts";
import {
  envsMaxBytes,
  labelsMax,
  labelValueMaxBytes,
  listPageMax,
  resumeWaitersMax,
  resumeWaitMs,
} from "../wire/capsule.ts";
import { keyNameMaxLength, keysMax } from "../wire/credentials.ts";
import { archivePathsMax } from "../wire/file.ts";
import { urlMaxSec } from "../wire/file-url.ts";
import { idempotencyKeepSec, idempotencyKeysMax } from "../wire/idempotency.ts";
import type { FixedLimits, Limits } from "../wire/limits.ts";
import { templateNameMaxLength } from "../wire/template.ts";
import { reservedPerTeamBytes, teamShare } from "./access/answer-budget.ts";
import { burstSec, credentialRate, teamRateFactor } from "./access/authentication.ts";
import { largerNetworks } from "./access/network.ts";
import { signInLinkOptions, socketTicketOptions } from "./access/one-time-tokens.ts";
import { receivedMaxBytes } from "./access/receive-budget.ts";
import { guestReplyMs } from "./client-gone.ts";
import { feedDefaults } from "./event-feed.ts";
import { gzipStreamsMax } from "./gzip.ts";
import { bodyArrivalMs, openBodyMaxBytes } from "./json-body.ts";
import { jsonValuesMax } from "./json-values.ts";
import { pipelinedMax } from "./pipelining.ts";
import { guestHeadMaxBytes } from "./ports/guest-request.ts";
import { answerHeadMs } from "./ports/port-visit.ts";
import { earlyMaxBytes } from "./ports/upgrade-body.ts";
import { listingsMax } from "./routes/files/list.ts";
import { portListsMax } from "./routes/ports.ts";
import { processListsMax } from "./routes/processes.ts";
import { sessionLifeMs } from "./routes/sign-in.ts";
import { unsentMaxBytes } from "./sockets/connection.ts";
import { firstMessageMs } from "./sockets/exec.ts";
import { uploadStallMs } from "./upload-body.ts";
import { formMaxBytes } from "./uploads.ts";

/** The limits of the server's connections, as it was built. */
export interface ConnectionTimes {
  headersMaxBytes: number;
  headersMs: number;
  keepAliveMs: number;
  keylessKeepAliveMs: number;
  stallMs: number;
}

export function fixedLimits(limits: Limits, connection: ConnectionTimes): FixedLimits {
  return {
    keys_max: keysMax,
    key_name_max_length: keyNameMaxLength,
    credentials_per_min: credentialRate.perMin,
    credentials_burst_max: credentialRate.burst,
    tickets_max: socketTicketOptions.liveMax,
    ticket_life_sec: socketTicketOptions.lifeMs / 1_000,
    sign_in_links_max: signInLinkOptions.liveMax,
    sign_in_link_life_sec: signInLinkOptions.lifeMs / 1_000,
    session_life_sec: sessionLifeMs / 1_000,
    team_requests_per_sec: limits.requests_per_sec * teamRateFactor,
    requests_burst_sec: burstSec.keys,
    headers_max_bytes: connection.headersMaxBytes,
    headers_max_sec: connection.headersMs / 1_000,
    keep_alive_sec: connection.keepAliveMs / 1_000,
    keyless_keep_alive_sec: connection.keylessKeepAliveMs / 1_000,
    pipelined_requests_max: pipelinedMax,
    keyless_connections_per_24_max: limits.connections_per_address_max * largerNetworks.small,
    keyless_connections_per_16_max: limits.connections_per_address_max * largerNetworks.large,
    body_max_sec: bodyArrivalMs / 1_000,
    team_received_max_bytes: receivedMaxBytes,
    json_values_max: jsonValuesMax,
    open_body_max_bytes: openBodyMaxBytes,
    form_max_bytes: formMaxBytes,
    url_max_sec: urlMaxSec,
    upload_stall_max_sec: uploadStallMs / 1_000,
    read_stall_max_sec: connection.stallMs / 1_000,
    guest_reply_max_sec: guestReplyMs / 1_000,
    team_answers_max_bytes: limits.answers_max_bytes * teamShare,
    team_answers_reserved_bytes: reservedPerTeamBytes,
    listings_max: listingsMax,
    archive_paths_max: archivePathsMax,
    gzip_streams_max: gzipStreamsMax,
    process_lists_max: processListsMax,
    processes_listed_max: guestLimits.processesMax,
    process_list_max_bytes: guestLimits.processListingBytes,
    port_lists_max: portListsMax,
    ports_listed_max: portsListedMax,
    port_answer_head_max_bytes: guestHeadMaxBytes,
    port_answer_head_max_sec: answerHeadMs / 1_000,
    port_early_max_bytes: earlyMaxBytes,
    resume_waiters_max: resumeWaitersMax,
    resume_wait_max_sec: resumeWaitMs / 1_000,
    labels_max: labelsMax,
    label_value_max_bytes: labelValueMaxBytes,
    envs_max_bytes: envsMaxBytes,
    list_page_max: listPageMax,
    idempotency_keep_sec: idempotencyKeepSec,
    idempotency_keys_max: idempotencyKeysMax,
    template_name_max_length: templateNameMaxLength,
    event_streams_max: feedDefaults.streamsMax,
    events_kept_max: feedDefaults.ringMax,
    events_kept_sec: feedDefaults.lingerMs / 1_000,
    event_stream_unread_max_bytes: feedDefaults.backlogMaxBytes,
    socket_first_message_max_sec: firstMessageMs / 1_000,
    socket_unread_max_bytes: unsentMaxBytes,
    capsule_processes_max: guestLimits.liveMax,
    capsule_file_operations_max: guestLimits.tasksMax,
    output_kept_max_bytes: guestLimits.keptOutputBytes,
    exits_kept_max: guestLimits.keptExitsMax,
    exits_kept_sec: guestLimits.keptExitsMs / 1_000,
    terminal_replay_max_bytes: guestLimits.replayBytes,
    terminal_input_max_bytes: guestLimits.terminalInputBytes,
    output_lag_max_bytes: guestLimits.lagBytes,
  };
}
