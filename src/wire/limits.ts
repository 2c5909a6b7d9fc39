/** Limits of the service, set by the operator and readable by every client. Units stand last in the names. */
import Type, { type Static } from "typebox";

export const Limits = Type.Object(
  {
    vcpus_max: Type.Integer({ description: "Virtual CPUs of one capsule." }),
    memory_min_mb: Type.Integer({ description: "Smallest memory of one capsule, MiB." }),
    memory_max_mb: Type.Integer({ description: "Largest memory of one capsule, MiB." }),
    timeout_max_sec: Type.Integer({ description: "Longest inactivity time before auto-pause." }),
    capsules_max: Type.Integer({ description: "Capsules of one team, whatever their status." }),
    starts_max: Type.Integer({
      description: "Creates and resumes of one team that wait for their turn or are under way; further ones are 429.",
    }),
    running_vcpus_max: Type.Integer({ description: "vCPUs of one team's running capsules together." }),
    running_memory_max_mb: Type.Integer({ description: "Memory of one team's running capsules together, MiB." }),
    disk_max_bytes: Type.Integer({
      description: "Disk space of one team's capsules and templates. Beyond it no more can be created.",
    }),
    templates_max: Type.Integer({ description: "Snapshot templates of one team." }),
    body_max_bytes: Type.Integer({ description: "JSON request body." }),
    exec_timeout_default_sec: Type.Integer({ description: "Foreground exec without a timeout of its own." }),
    exec_timeout_max_sec: Type.Integer({ description: "Longest foreground exec timeout; 0 asks for none." }),
    exec_output_max_bytes: Type.Integer({ description: "Output kept per stream in a foreground result." }),
    file_write_max_bytes: Type.Integer({ description: "Content of a file sent to files/write." }),
    list_entries_max: Type.Integer({ description: "Entries of one listing." }),
    list_depth_max: Type.Integer({ description: "Depth of one listing." }),
    listing_max_bytes: Type.Integer({ description: "One listing of files, as the guest encodes it." }),
    answers_max_bytes: Type.Integer({
      description: "Listings and command output of all teams that clients have not read yet, as JSON. Beyond it 503.",
    }),
    path_max_bytes: Type.Integer({ description: "A path inside a capsule." }),
    connections_max: Type.Integer({ description: "Open connections of all clients together." }),
    connections_per_address_max: Type.Integer({
      description: "Open connections of one IPv4 address or one IPv6 /64 network; further ones are closed.",
    }),
    sockets_max: Type.Integer({ description: "Open WebSockets of one team." }),
    socket_message_max_bytes: Type.Integer({ description: "One WebSocket message from a client." }),
    sockets_per_capsule_max: Type.Integer({ description: "Open WebSockets of one capsule." }),
    requests_max: Type.Integer({ description: "Concurrent requests of one team, WebSockets excluded." }),
    requests_per_sec: Type.Integer({
      description: "Sustained rate of requests with one key; bursts of up to 5 seconds' worth.",
    }),
    refused_keys_per_sec: Type.Integer({
      description:
        "Sustained rate of requests without a valid key and sign-ins without a valid link, from one address; " +
        "bursts of up to 20 seconds' worth.",
    }),
    open_requests_per_sec: Type.Integer({
      description:
        "Sustained rate of requests from one address to endpoints without a key; bursts of up to 10 seconds' worth.",
    }),
    wait_max_sec: Type.Integer({ description: "Longest wait of GET /v1/capsules/{id}?wait=…" }),
  },
  { title: "Limits" },
);
export type Limits = Static<typeof Limits>;

/** Limits that no setting changes, except as parts of another one. */
export const FixedLimits = Type.Object(
  {
    keys_max: Type.Integer({ description: "Live API keys of one team." }),
    key_name_max_length: Type.Integer({ description: "Characters of a key's name." }),
    tickets_max: Type.Integer({ description: "Unused WebSocket tickets of one team." }),
    ticket_life_sec: Type.Integer({ description: "Life of an unused ticket." }),
    sign_in_links_max: Type.Integer({ description: "Unused sign-in links of one team." }),
    sign_in_link_life_sec: Type.Integer({ description: "Life of an unused sign-in link." }),
    session_life_sec: Type.Integer({ description: "Life of a key made by a sign-in." }),
    team_requests_per_sec: Type.Integer({ description: "Sustained rate of requests with all keys of a team." }),
    requests_burst_sec: Type.Integer({
      description: "Seconds' worth of requests that may come at once, with one key or of one team.",
    }),
    headers_max_bytes: Type.Integer({ description: "URL and headers of a request." }),
    headers_max_sec: Type.Integer({ description: "Longest arrival of a request's headers." }),
    keep_alive_sec: Type.Integer({ description: "Life of a connection without a request, after an answer." }),
    body_max_sec: Type.Integer({ description: "Longest arrival of a JSON body." }),
    open_body_max_bytes: Type.Integer({ description: "JSON body of a request to an endpoint without a key." }),
    form_max_bytes: Type.Integer({ description: "Fields and headers of an upload's form, without the file." }),
    upload_stall_max_sec: Type.Integer({ description: "Longest pause of an upload." }),
    read_stall_max_sec: Type.Integer({ description: "Longest pause of a client that has an answer to read." }),
    guest_reply_max_sec: Type.Integer({
      description:
        "Longest wait for a guest that signals, lists processes, makes a directory, or starts in the background.",
    }),
    team_answers_max_bytes: Type.Integer({ description: "One team's part of answers_max_bytes." }),
    team_answers_reserved_bytes: Type.Integer({
      description: "Answers of one team that do not count against answers_max_bytes.",
    }),
    listings_max: Type.Integer({ description: "Listings of files of one team at once; further ones wait." }),
    process_lists_max: Type.Integer({ description: "Listings of processes of one team at once; further ones wait." }),
    processes_listed_max: Type.Integer({ description: "Processes of one listing." }),
    process_list_max_bytes: Type.Integer({
      description: "Command lines of one listing of processes; of further processes only the name is told.",
    }),
    template_name_max_length: Type.Integer({ description: "Characters of a template's name in a request." }),
    event_streams_max: Type.Integer({ description: "Event streams of one team." }),
    events_kept_max: Type.Integer({ description: "Events of one team that a client can resume after." }),
    events_kept_sec: Type.Integer({ description: "How long they are kept without an event stream." }),
    event_stream_unread_max_bytes: Type.Integer({
      description: "Unread events of one stream; beyond it the stream ends.",
    }),
    socket_first_message_max_sec: Type.Integer({ description: "Longest wait for the first message of a WebSocket." }),
    socket_unread_max_bytes: Type.Integer({
      description: "Unread messages of one WebSocket; beyond it the socket is closed.",
    }),
    capsule_processes_max: Type.Integer({
      description: "Commands of one capsule that run at once, and as many terminals.",
    }),
    capsule_file_operations_max: Type.Integer({ description: "File operations and listings of one capsule at once." }),
    exits_kept_max: Type.Integer({
      description: "Ended background processes of one capsule whose exit code is kept, and as many terminals.",
    }),
    exits_kept_sec: Type.Integer({ description: "How long an exit code is kept." }),
    terminal_replay_max_bytes: Type.Integer({
      description: "Output of a terminal without a client that is kept for the next one.",
    }),
    terminal_input_max_bytes: Type.Integer({ description: "Input that a terminal's program has not read." }),
    output_lag_max_bytes: Type.Integer({
      description: "Output that waits in the guest for a client of attach or of a terminal.",
    }),
  },
  { title: "FixedLimits" },
);
export type FixedLimits = Static<typeof FixedLimits>;

/** The usage of the client's team. */
export const Usage = Type.Object(
  {
    capsules: Type.Integer(),
    running_vcpus: Type.Integer(),
    running_memory_mb: Type.Integer(),
    disk_bytes: Type.Integer({ description: "Measured at most a minute ago." }),
    templates: Type.Integer(),
    sockets: Type.Integer(),
    requests: Type.Integer({ description: "Concurrent requests, this one included." }),
  },
  { title: "Usage" },
);
export type Usage = Static<typeof Usage>;

export const LimitsAndUsage = Type.Object(
  { ...Limits.properties, ...FixedLimits.properties, usage: Usage },
  { title: "Limits" },
);
