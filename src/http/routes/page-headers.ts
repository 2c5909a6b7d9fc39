/** What pages tell the browser to forbid: everything from elsewhere, being framed, guessing types, telling referrers. */
import type { App } from "../route.ts";

const policy = [
  "default-src 'self'",
  "img-src 'self' data:",
  "object-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

/** Call before the pages of this context are declared. */
export function protectPages(app: App): void {
  app.addHook("onRequest", (_request, reply, done) => {
    reply
      .header("content-security-policy", policy)
      .header("cross-origin-opener-policy", "same-origin")
      .header("referrer-policy", "no-referrer")
      .header("x-content-type-options", "nosniff")
      .header("x-frame-options", "DENY");
    done();
  });
}
