/** The tests on a whole machine have two forms: a share for every build, and all of it, `CAPSULE_KVM=long ./dev test kvm`. */
export const isLong = process.env.CAPSULE_KVM === "long";
/** Why a test is left out of the short form, or false. */
export const onlyLong = !isLong && "in the long form: CAPSULE_KVM=long";
