/**
 * The tests on a whole machine have three forms: CAPSULE_KVM=smoke is a share of some minutes, CAPSULE_KVM=long is all of them,
 * and without it `./dev test kvm` runs most.
 */
export const isLong = process.env.CAPSULE_KVM === "long";
/** Why a test is left out of the two shorter forms, or false. */
export const onlyLong = !isLong && "in the long form: CAPSULE_KVM=long";
/** Why tests are left out of that share, or false. */
export const notInSmoke = process.env.CAPSULE_KVM === "smoke" && "in the usual form: ./dev test kvm";
