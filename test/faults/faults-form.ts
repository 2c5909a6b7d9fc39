/**
 * Fault tests have two forms: the short one for every build, and the long one, `CAPSULE_FAULTS=long ./dev test faults`.
 */
export const isLong = process.env.CAPSULE_FAULTS === "long";
