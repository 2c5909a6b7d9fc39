/** Makes signed URLs of files; signed.ts answers them. */
import { SignedUrl, UrlBody, urlDefaultSec } from "../../../wire/file-url.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { checkPath } from "../../guest-path.ts";
import { originOf } from "../../origin.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";
import { timestamp } from "../../timestamps.ts";

export const fileUrlSection: Section = { chapter: "Files", register };

function register(app: App, { limits, signedUrls }: RouteContext): void {
  app.post(
    "/capsules/:id/files/url",
    {
      config: {
        action: "read",
        audit: { action: "file.url" },
        headers: ["Cache-Control"],
        refuses: ["quota_exceeded"],
      },
      schema: {
        operationId: "createFileUrl",
        summary: "Make a URL that reads or writes one file without a key",
        example: { path: "/root/report.pdf", expires_sec: 3_600 },
        params: CapsuleParams,
        body: UrlBody,
        response: { 200: SignedUrl },
      },
    },
    (request, reply) => {
      const { identity, params, body } = request;
      const { method = "GET", expires_sec: expiresSec = urlDefaultSec } = body;
      addAuditDetails(request, { subject: `${method} ${body.path}` });
      const path = checkPath(body.path, limits.path_max_bytes);
      const origin = originOf(request);
      const expiresAt = signedUrls.now() + expiresSec * 1_000;
      const grant = { method, capsuleId: params.id, path, expiresAt, keyId: identity.keyId };
      const url = origin + signedUrls.pathOf(identity.teamId, grant);
      reply.header("cache-control", "no-store").send({ url, expires_at: timestamp(expiresAt) });
    },
  );
}
