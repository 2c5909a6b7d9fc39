/** The numbers a client can run into: configured by the operator, readable by everyone. Units stand last in the names. */
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
      description: "What one team's capsules and templates may take on disk before it can make no more.",
    }),
    templates_max: Type.Integer({ description: "Snapshot templates of one team." }),
    body_max_bytes: Type.Integer({ description: "JSON request body." }),
    exec_timeout_default_sec: Type.Integer({ description: "Foreground exec without a timeout of its own." }),
    exec_timeout_max_sec: Type.Integer({ description: "Longest foreground exec timeout; 0 asks for none." }),
    exec_output_max_bytes: Type.Integer({ description: "Kept of each stream in a foreground result." }),
    file_write_max_bytes: Type.Integer({ description: "Content of a file sent to files/write." }),
    list_entries_max: Type.Integer({ description: "Entries of one listing." }),
    list_depth_max: Type.Integer({ description: "Depth of one listing." }),
    path_max_bytes: Type.Integer({ description: "A path inside a capsule." }),
    connections_max: Type.Integer({ description: "Open connections of all clients together." }),
    sockets_max: Type.Integer({ description: "Open WebSockets of one team." }),
    socket_message_max_bytes: Type.Integer({ description: "One WebSocket message from a client." }),
    sockets_per_capsule_max: Type.Integer({ description: "Open WebSockets of one capsule." }),
    requests_max: Type.Integer({ description: "Requests of one team under way at once, WebSockets aside." }),
    requests_per_sec: Type.Integer({
      description: "Requests with one key, in the long run; five seconds' worth may come at once.",
    }),
    refused_keys_per_sec: Type.Integer({
      description:
        "Requests without a valid key, and sign-ins without a valid link, from one address, in the long run; " +
        "20 seconds' worth may come at once.",
    }),
    open_requests_per_sec: Type.Integer({
      description:
        "Requests from one address for what asks for no key, in the long run; 10 seconds' worth may come at once.",
    }),
    wait_max_sec: Type.Integer({ description: "Longest wait of GET /v1/capsules/{id}?wait=…" }),
  },
  { title: "Limits" },
);
export type Limits = Static<typeof Limits>;

/** What the asking team has of what is limited. */
export const Usage = Type.Object(
  {
    capsules: Type.Integer(),
    running_vcpus: Type.Integer(),
    running_memory_mb: Type.Integer(),
    disk_bytes: Type.Integer({ description: "As of the last look, which is at most a minute ago." }),
    templates: Type.Integer(),
    sockets: Type.Integer(),
    requests: Type.Integer({ description: "Under way, this one included." }),
  },
  { title: "Usage" },
);
export type Usage = Static<typeof Usage>;

export const LimitsAndUsage = Type.Object({ ...Limits.properties, usage: Usage }, { title: "Limits" });
