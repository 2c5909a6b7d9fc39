/**
 * OpenTelemetry spans of requests, of operations on VMs and of commands, sent to a collector by OTLP over HTTP. Loaded
 * only if an endpoint is configured. Spans carry capsule ids, never keys, commands, paths or output.
 */
import {
  type Attributes,
  context,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import type { Observe } from "../capsules/transitions.ts";
import type { TracedRequest, TracingService } from "../http/tracing.ts";

export class Traces implements TracingService {
  readonly #provider: NodeTracerProvider;
  readonly #tracer: Tracer;

  /** `endpoint` is the collector's base URL, as in http://localhost:4318. */
  constructor(endpoint: string, version: string) {
    const exporter = new OTLPTraceExporter({ url: `${endpoint.replace(/\/+$/, "")}/v1/traces` });
    this.#provider = new NodeTracerProvider({
      resource: resourceFromAttributes({ "service.name": "capsule", "service.version": version }),
      spanProcessors: [new BatchSpanProcessor(exporter)],
    });
    this.#provider.register();
    this.#tracer = this.#provider.getTracer("capsule", version);
  }

  /** Its parent is the client's span if the headers name one. */
  requestBegan({ method, route, id, capsuleId, headers }: TracedRequest, next: () => void): (status: number) => void {
    const span = this.#tracer.startSpan(
      `${method} ${route}`,
      {
        kind: SpanKind.SERVER,
        attributes: {
          "http.request.method": method,
          "http.route": route,
          "capsule.request_id": id,
          ...(capsuleId === undefined ? {} : { "capsule.id": capsuleId }),
        },
      },
      propagation.extract(context.active(), headers),
    );
    context.with(trace.setSpan(context.active(), span), next);
    return (status) => {
      span.setAttribute("http.response.status_code", status);
      if (status >= 500) span.setStatus({ code: SpanStatusCode.ERROR });
      span.end();
    };
  }

  readonly observe: Observe = (operation, capsuleId, work) =>
    this.#tracer.startActiveSpan(`capsule ${operation}`, { attributes: idOf(capsuleId) }, async (span) => {
      try {
        return await work();
      } catch (error) {
        fail(span, error);
        throw error;
      } finally {
        span.end();
      }
    });

  /** Call the returned function when the command ends. */
  execStarted(capsuleId: string): () => void {
    const span = this.#tracer.startSpan("capsule exec", { attributes: idOf(capsuleId) });
    return () => span.end();
  }

  /** Sends the remaining spans, within `graceMs`. */
  async close(graceMs: number): Promise<void> {
    const grace = new Promise<void>((resolve) => setTimeout(resolve, graceMs).unref());
    await Promise.race([this.#provider.shutdown().catch(() => {}), grace]);
  }
}

function idOf(capsuleId: string): Attributes {
  return { "capsule.id": capsuleId };
}

/** Records the error's code only: its message may quote a path or a name. */
function fail(span: Span, error: unknown): void {
  const { code } = (error ?? {}) as { code?: unknown };
  span.setStatus({ code: SpanStatusCode.ERROR });
  if (typeof code === "string") span.setAttribute("error.type", code);
}
