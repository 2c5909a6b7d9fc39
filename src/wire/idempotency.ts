/** The header Idempotency-Key, with which a request can be sent again and change nothing again. */
import Type from "typebox";

/** How long the first answer is kept. */
export const idempotencyKeepSec = 86_400;
/** Answers that are kept of one team; the oldest go first. */
export const idempotencyKeysMax = 10_000;
/** The size of these answers together. */
export const idempotencyMaxBytes = 32 * 1024 * 1024;

export const idempotencyKeyPattern = "^[!-~]{1,255}$";

export const IdempotencyHeaders = Type.Object({
  "idempotency-key": Type.Optional(
    Type.String({
      pattern: idempotencyKeyPattern,
      description:
        "For 24 h the same key, path and body give the first answer again, with the header Idempotent-Replayed, and change nothing; " +
        "another body is 409. A repeat waits while the first request is under way. Refusals are not kept.",
    }),
  ),
});
