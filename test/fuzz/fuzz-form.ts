/** Fuzzing has two forms: the short one for every build, and the long one, `CAPSULE_FUZZ=long ./dev test fuzz`. */
export const isLong = process.env.CAPSULE_FUZZ === "long";
