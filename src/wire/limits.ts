/** Limits of the service, set by the operator and readable by every client. Units stand last in the names. */
import Type, { type Static } from "typebox";

export const Limits = Type.Object(
  {
    vcpus_max: Type.Integer({ description: "Virtual CPUs of one capsule." }),
    memory_min_mb: Type.Integer({ description: "Smallest memory of one capsule, MiB." }),
    memory_max_mb: Type.Integer({ description: "Largest memory of one capsule, MiB." }),
    timeout_max_sec: Type.Integer({ description: "Longest inactivity time before auto-pause." }),
    capsules_max: Type.Integer({ description: "Capsules of one team, whatever their status." }),
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

export const LimitsAndUsage = Type.Object({ ...Limits.properties, usage: Usage }, { title: "Limits" });
