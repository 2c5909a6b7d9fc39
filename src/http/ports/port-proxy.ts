/**
 * Serves the URLs of ports: Host → who may → wake → dial → request and answer, streamed. It stands before the API's routes, which
 * never see a request whose Host lies below the domain of ports (docs/adr/0078-choose-between-api-and-ports-by-host-alone.md).
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AgentParts } from "../../capsules/agent-parts.ts";
import type { Proxies } from "../../network/proxies.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Authentication } from "../access/authentication.ts";
import type { ChunkTurns } from "../access/chunk-turns.ts";
import type { ConnectionLimit } from "../access/connection-limit.ts";
import { networkOf } from "../access/network.ts";
import type { PortPlaces } from "../access/port-places.ts";
import { type TeamTurns, turnOwner } from "../access/team-turns.ts";
import { dialled } from "../dialled.ts";
import { toCapsuleError } from "../errors.ts";
import { noteExpectation } from "../expect-continue.ts";
import type { Forwarding, PassOn } from "../forwarding.ts";
import { refusalNow } from "../gate.ts";
import { announcesBody } from "../json-body.ts";
import { describeError } from "../log.ts";
import type { RefusedBodies } from "../refused-bodies.ts";
import type { Need, ReleasedCapsule } from "../released.ts";
import { newRequestId } from "../request-id.ts";
import type { App } from "../route.ts";
import type { Services } from "../services.ts";
import { clientAddress } from "./client-address.ts";
import { GuestExchange } from "./guest-exchange.ts";
import { type Grant, PortDoor } from "./port-access.ts";
import { credentialsOf } from "./port-credentials.ts";
import { sendPortError } from "./port-errors.ts";
import type { PortAddress, PortHosts } from "./port-hosts.ts";
import type { PortReports } from "./port-reports.ts";
import { PortVisit, type Upgrade } from "./port-visit.ts";
import { redirectHeaders } from "./token-redirect.ts";
import { Wakes } from "./wakes.ts";

export interface PortProxyOptions {
  services: Pick<Services, "capsules" | "teams" | "released">;
  hosts: PortHosts;
  /** Scheme and port of the URLs, where a proxy in front decides them. */
  outside: { scheme: "http" | "https"; port: number | undefined } | undefined;
  hasTls: boolean;
  /** Their connections carry those of other clients. */
  proxies: Proxies;
  authentication: Authentication;
  connections: Pick<ConnectionLimit, "authenticated">;
  places: PortPlaces;
  turns: TeamTurns;
  chunkTurns: ChunkTurns;
  refusedBodies: RefusedBodies;
  reports: PortReports;
  log: App["log"];
  publicWakesMax: number;
  /** The way to other hosts; undefined: there are none. */
  forwarding?: Forwarding | undefined;
}

type Refusable = Pick<PortVisit, "request" | "response">;

export class PortProxy {
  readonly #options: PortProxyOptions;
  readonly #door: PortDoor;
  readonly #wakes: Wakes;
  /** Connections of requests that ask for an upgrade. Node's server does not end them. */
  readonly #upgrades = new Set<Upgrade["socket"]>();
  #isStopping = false;

  constructor(options: PortProxyOptions) {
    this.#options = options;
    this.#door = new PortDoor(options.services, options.authentication);
    this.#wakes = new Wakes(options.publicWakesMax, () => options.reports.woke());
  }

  /** Call before other listeners for requests are added. The present ones get no request to a port. */
  attachTo(app: App): void {
    const { server }: { server: Server } = app;
    const listeners = server.listeners("request") as ((
      this: Server,
      ...exchange: [IncomingMessage, ServerResponse]
    ) => void)[];
    server.removeAllListeners("request");
    server.on("request", (request, response) => {
      if (this.serve(request, response)) return;
      for (const listener of listeners) listener.call(server, request, response);
    });
    app.addHook("preClose", (done) => {
      this.#isStopping = true;
      for (const socket of this.#upgrades) socket.destroy();
      done();
    });
  }

  /** Whether the request goes to a port, or to none below the domain. It is answered then. */
  serve(request: IncomingMessage, response: ServerResponse, upgrade?: Upgrade): boolean {
    const destination = this.#options.hosts.destinationOf(request);
    if (destination.kind === "api" || destination.kind === "malformed") return false;
    if (upgrade !== undefined) {
      this.#keep(upgrade);
      noteExpectation(request, response);
    }
    const { forwarding, proxies } = this.#options;
    const caller = forwarding?.callerOf(request);
    const ip = caller?.address ?? clientAddress(request, proxies);
    if (announcesBody(request) && upgrade === undefined)
      this.#options.refusedBodies.watch(request, response, networkOf(ip), 0);
    if (destination.kind === "nothing") {
      this.#refuseNowhere({ request, response }, ip);
      return true;
    }
    const remote = (caller?.remote ?? request.socket.remoteAddress ?? "").replace(/^::ffff:(?=[0-9.]+$)/, "");
    const enter = () => this.#begin(new PortVisit({ request, response, upgrade }, { ...destination, ip, remote }));
    const passOn = forwarding?.elsewhere(request, undefined, destination.address.id);
    if (passOn === undefined) enter();
    else this.#passOn(passOn, { request, response, upgrade }, { ...destination, ip, remote }, enter);
    return true;
  }

  /** The holder checks the credentials. `enter`: where no host has the capsule. */
  #passOn(
    passOn: PassOn,
    { request, response, upgrade }: Pick<PortVisit, "request" | "response" | "upgrade">,
    client: { address: PortAddress; path: string; ip: string; remote: string },
    enter: () => void,
  ): void {
    const { ip, remote, address } = client;
    const caller = { identity: undefined, address: ip, remote, requestId: newRequestId() };
    const cleanups = new DisposableStack();
    const needOf = (capsule: ReleasedCapsule) => this.#needOf(capsule, request, client, cleanups);
    const owner = turnOwner(undefined, ip);
    this.#options.turns.enter(owner, response, () => {
      const admitLookup = () => this.#options.authentication.admitAnonymous({ ip });
      const exchange = { request, response, upgrade, caller, team: address.id, admitLookup, needOf };
      passOn({ ...exchange, onAnswer: () => {} })
        .then(
          (isAnswered) => {
            if (!isAnswered && !response.closed) enter();
          },
          (refusal: unknown) => {
            if (!response.closed) sendPortError(toCapsuleError(refusal), request, response);
          },
        )
        .finally(() => cleanups.dispose());
    });
  }

  /** No host acquires a capsule for a client that its port would refuse. */
  async #needOf(
    capsule: ReleasedCapsule,
    request: IncomingMessage,
    { address, path, ip }: { address: PortAddress; path: string; ip: string },
    cleanups: DisposableStack,
  ): Promise<Need> {
    const { services, authentication, connections } = this.#options;
    const credentials = credentialsOf({ path, headers: request.rawHeaders });
    await authentication.learnKeys([...credentials.keys, ...credentials.authorizationKeys], { ip });
    const authenticated = ({ teamId }: { teamId: string }) => connections.authenticated(request, teamId);
    const grant = this.#door.open(address, credentials, { ip, authenticated }, capsule.portAccess);
    const need = services.released?.needOf(capsule, "ports", true) ?? "held";
    if (need === "wake") cleanups.defer(this.#wakes.begin(address.id, grant, false));
    return need;
  }

  #keep({ socket }: Upgrade): void {
    this.#upgrades.add(socket);
    socket.once("close", () => this.#upgrades.delete(socket));
    if (this.#isStopping) socket.destroy();
  }

  #refuseNowhere({ request, response }: Refusable, ip: string): void {
    const { turns, authentication, reports } = this.#options;
    const startedMs = performance.now();
    let error = new CapsuleError("not_found", "there is no port of a capsule at this host");
    try {
      authentication.admitAnonymous({ ip });
    } catch (refusal) {
      error = toCapsuleError(refusal);
    }
    response.once("close", () => {
      const status = response.headersSent ? response.statusCode : undefined;
      const { method = "" } = request;
      reports.ended({ address: undefined, method, status, code: error.code, teamId: undefined, startedMs });
    });
    turns.enter(turnOwner(undefined, ip), response, () => sendPortError(error, request, response));
  }

  /** Another host may have made the key that the request has. */
  #begin(visit: PortVisit): void {
    const { keys, authorizationKeys } = visit.credentials;
    const learned = this.#options.authentication.learnKeys([...keys, ...authorizationKeys], visit);
    if (learned === undefined) this.#enter(visit);
    else
      void learned.then(() => {
        if (!visit.response.closed) this.#enter(visit);
      });
  }

  /** Credentials are checked at once, and all else happens in a turn of the team. */
  #enter(visit: PortVisit): void {
    const { turns, connections } = this.#options;
    const { request, response, ip } = visit;
    visit.onEnd(() => this.#report(visit));
    let refusal: unknown;
    try {
      const authenticated = ({ teamId }: { teamId: string }) => connections.authenticated(request, teamId);
      visit.grant = this.#door.open(visit.address, visit.credentials, { ip, authenticated });
    } catch (error) {
      refusal = error;
    }
    const { grant } = visit;
    const owner = grant === undefined || isOfAnybody(grant) ? undefined : grant.teamId;
    turns.enter(turnOwner(owner, ip), response, () => {
      const answered = grant === undefined ? Promise.reject(refusal) : this.#answer(visit, grant);
      answered.catch((error: unknown) => this.#refuse(visit, error)).catch(() => response.destroy());
    });
  }

  async #answer(visit: PortVisit, grant: Grant): Promise<void> {
    const { places, hasTls, proxies, outside } = this.#options;
    const { request, response, upgrade } = visit;
    visit.requireBody();
    const isLink = grant.queryToken !== undefined && request.method === "GET" && upgrade === undefined;
    if (isLink && visit.head.path.startsWith("/")) {
      const isForwarded = proxies.has(visit.remote) ? request.headers["x-forwarded-proto"] : undefined;
      const scheme = hasTls || isForwarded === "https" ? "https" : "http";
      response.writeHead(303, redirectHeaders(visit, grant, { outside, scheme, now: this.#door.now() })).end();
      return;
    }
    const place = places.take(grant.teamId, visit.address.id);
    visit.onEnd(() => place[Symbol.dispose]());
    visit.onEnd(this.#door.onShut(visit.address, grant, () => visit.end(shut())));
    const onWait = (isResuming: boolean) => this.#wakes.begin(visit.address.id, grant, isResuming);
    await this.#options.services.capsules.use(
      grant.teamId,
      visit.address.id,
      "ports",
      (agent) => this.#pass(visit, grant, agent),
      { signal: visit.signal, onWait },
    );
  }

  async #pass(visit: PortVisit, grant: Grant, agent: AgentParts["ports"]): Promise<void> {
    const { capsules } = this.#options.services;
    const { id, port } = visit.address;
    visit.signal.throwIfAborted();
    const end = agent.beginRequest();
    visit.onEnd(end);
    visit.onEnd(capsules.onEnd(id, () => visit.end(runEnded())));
    visit.startDeadline();
    const shows = (each: number) => grant.identity !== undefined || grant.publicPorts.includes(each);
    const guest = await dialled(agent, port, visit.signal, shows);
    const onActivity = () => this.#noteActivity(grant.teamId, id);
    await new GuestExchange(visit, guest, { ...this.#options, grant, onUpgraded: end, onActivity }).done();
  }

  #refuse(visit: PortVisit, thrown: unknown): void {
    const { services, log } = this.#options;
    const { request, response, grant, address } = visit;
    visit.stopDeadline();
    const now =
      grant === undefined
        ? thrown
        : refusalNow(thrown, { ...address, teamId: grant.teamId, action: "ports" }, services.capsules);
    const error = toCapsuleError(now);
    visit.code = error.code;
    if (response.destroyed || visit.isUpgraded) {
      visit.close();
      return;
    }
    if (error.code === "internal_error")
      log.error({ error: describeError(thrown), code: error.code }, "port request failed");
    sendPortError(error, request, response);
  }

  #noteActivity(teamId: string, id: string): void {
    try {
      this.#options.services.capsules.ping(teamId, id);
    } catch {
      // It is being paused or destroyed, which ends the connection.
    }
  }

  #report(visit: PortVisit): void {
    const { reports, services } = this.#options;
    const { request, response, grant, address, code, startedMs, isUpgraded } = visit;
    const status = isUpgraded ? 101 : response.headersSent ? response.statusCode : undefined;
    const teamId = grant?.teamId;
    reports.ended({ address, method: request.method ?? "", status, code, teamId, startedMs });
    if (teamId !== undefined && code !== undefined && (status === 429 || status === 503))
      services.capsules.metrics.refused(teamId);
  }
}

/** Neither a key nor a token opened it. */
function isOfAnybody({ identity, tokens }: Grant): boolean {
  return identity === undefined && tokens.length === 0;
}

function shut(): CapsuleError {
  return new CapsuleError("unauthorized", "what opened this port is no longer valid");
}

/** Replaced by the refusal that the same request would get now. */
function runEnded(): CapsuleError {
  return new CapsuleError("agent_error", "the capsule was stopped, paused or destroyed, or has failed");
}

/** Whether a request asks for a protocol that is spliced as bytes. One with a body of unknown length is served without. */
export function isSplicable({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] === undefined;
}
