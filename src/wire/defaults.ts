/** Values of a capsule's fields that its creator leaves out. The template is the built-in image that every service has. */
export const createDefaults = { template: "minimal", vcpus: 1, memory_mb: 512, timeout_sec: 0 } as const;
