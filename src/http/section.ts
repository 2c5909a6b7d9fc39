/** A section of the API: routes that belong together, in a file of `routes` or `sockets`. sections.ts lists them all. */
import type { FixedLimits, Limits } from "../wire/limits.ts";
import type { AnswerBudget } from "./access/answer-budget.ts";
import type { AnswerTurns } from "./access/answer-turns.ts";
import type { Authentication } from "./access/authentication.ts";
import type { ChunkTurns } from "./access/chunk-turns.ts";
import type { InFlightLimiter, TeamSemaphore } from "./access/in-flight.ts";
import type { IsLocal } from "./access/local-caller.ts";
import type { OneTimeTokens } from "./access/one-time-tokens.ts";
import type { PortPlaces } from "./access/port-places.ts";
import type { SignedUrls } from "./access/signed-urls.ts";
import type { TeamTurns } from "./access/team-turns.ts";
import type { CapsuleBodies } from "./capsule-bodies.ts";
import type { LinksOfAllHosts } from "./forwarding.ts";
import type { ListAnswers } from "./list-answers.ts";
import type { ServedMetrics } from "./metrics.ts";
import type { App, Chapter } from "./route.ts";
import type { Services } from "./services.ts";
import type { Sockets } from "./sockets/upgrades.ts";

export interface Section {
  /** Under which the API description has its routes. */
  chapter: Chapter;
  /** `app` is the section's own: hooks and parsers that are added to it apply to no other section. */
  register(app: App, context: RouteContext): void;
}

export interface RouteContext {
  services: Services;
  limits: Limits;
  fixedLimits: FixedLimits;
  answers: AnswerBudget;
  lists: ListAnswers;
  isLocal: IsLocal;
  authentication: Authentication;
  turns: TeamTurns;
  answerTurns: AnswerTurns;
  /** One-time tickets of WebSockets. */
  tickets: Pick<OneTimeTokens, "issue">;
  /** Sign-in links that any host accepts; undefined: this one keeps those that it makes. */
  sharedLinks: LinksOfAllHosts | undefined;
  signedUrls: SignedUrls;
  inFlight: InFlightLimiter;
  /** Open connections to ports, through URLs and `/tcp`. */
  ports: PortPlaces;
  /** The domain below which ports have their URLs. */
  portDomain: string;
  /** Slots for archives that are compressed or decompressed. */
  gzipSlots: TeamSemaphore;
  sockets: Sockets;
  /** For bodies that a handler reads itself. */
  chunkTurns: ChunkTurns;
  bodies: CapsuleBodies;
  /** undefined: no metrics. */
  metrics: ServedMetrics | undefined;
  /** Folder of the built dashboard; may be missing. */
  web: string;
}
