/** The older name of a capsule: existing clients send it in the body of a capture, and it stands nowhere else. */
export const captureSubject = "sandbox_id";
