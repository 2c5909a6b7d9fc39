/**
 * Duration of the soak: an hour with `./dev test soak`, five minutes with CAPSULE_SOAK=short, and a smoke test in
 * `./dev test`, which checks that the soak itself works and finds large leaks.
 */
const forms = { hour: 3_600, short: 300, smoke: 10 };

export const form = (process.env.CAPSULE_SOAK ?? "hour") as keyof typeof forms;
if (!Object.hasOwn(forms, form)) throw new Error(`CAPSULE_SOAK is one of ${Object.keys(forms).join(", ")}`);

export const durationMs = forms[form] * 1_000;
