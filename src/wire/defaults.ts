/** Defaults of a new capsule and the form of its name, for the API and the dashboard. */
/** The template is the built-in image that every service has. */
export const createDefaults = { template: "minimal", vcpus: 1, memory_mb: 512 } as const;

/** Changes of a new capsule without a request. Default times are limits of the service. */
export const policyDefaults = { on_timeout: "pause", on_expiry: "destroy", auto_resume: false } as const;

/** The form of a capsule's name. No name begins as an id does. Browsers want the escape of `-`. */
export const capsuleNamePattern = "^(?!cl-)[a-z0-9]([a-z0-9\\-]{0,61}[a-z0-9])?$";
