// An agent made with the published TypeScript SDK: loads, lists and closes, keeps nothing on disk.
//
// The folder of the installed SDK is named by the environment variable ACP_SDK. It speaks on stdio;
// where ACP_WS names the folder of the installed package `ws`, it serves the SDK's WebSocket endpoint
// on a free port instead and prints its address. A turn does what the prompt's first word says: say, stream, ask, write, read, run, wait. An unknown session is
// refused the way that SDK does it: -32603 with the words in `data.details`.
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const acp = await import(pathToFileURL(join(process.env.ACP_SDK, "dist/acp.js")).href);

/** sessionId → { cwd, abort, history } */
const sessions = new Map();

function find(sessionId) {
  const session = sessions.get(sessionId);
  if (!session) throw new Error(`Session ${sessionId} not found`);
  return session;
}

function say(client, sessionId, text) {
  const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
  return client.notify("session/update", { sessionId, update });
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("cancelled"));
    });
  });
}

async function ask(client, sessionId, title) {
  const answer = await client.request("session/request_permission", {
    sessionId,
    toolCall: { toolCallId: "ask-1", title, kind: "other", status: "pending" },
    options: [
      { kind: "allow_once", name: "Allow", optionId: "yes" },
      { kind: "reject_once", name: "Reject", optionId: "no" },
    ],
  });
  await say(client, sessionId, `answer: ${answer.outcome.optionId ?? "cancelled"}`);
}

const turns = {
  async stream(client, sessionId, rest, session) {
    for (let number = 0; number < parseInt(rest); number += 1) {
      await say(client, sessionId, `chunk ${number} `);
      await pause(10, session.abort.signal);
    }
  },
  async wait(client, sessionId, rest, session) {
    await say(client, sessionId, "waiting");
    await pause(parseInt(rest), session.abort.signal);
  },
  ask,
  async write(client, sessionId, rest, session) {
    const [name, ...words] = rest.split(" ");
    await ask(client, sessionId, `write ${name}`);
    const path = join(session.cwd, name);
    await client.request("fs/write_text_file", { sessionId, path, content: words.join(" ") });
    await say(client, sessionId, "written");
  },
  async read(client, sessionId, rest, session) {
    const path = join(session.cwd, rest);
    const { content } = await client.request("fs/read_text_file", { sessionId, path });
    await say(client, sessionId, content);
  },
  async run(client, sessionId, rest) {
    const command = { sessionId, command: "sh", args: ["-c", rest] };
    const { terminalId } = await client.request("terminal/create", command);
    const at = { sessionId, terminalId };
    await client.request("terminal/wait_for_exit", at);
    const { output } = await client.request("terminal/output", at);
    await client.request("terminal/release", at);
    await say(client, sessionId, output);
  },
};

async function prompt(params, client) {
  const session = find(params.sessionId);
  const words = params.prompt.map((block) => block.text ?? "").join("");
  session.history.push(words);
  const [verb, ...rest] = words.split(" ");
  session.abort = new AbortController();
  try {
    const turn = turns[verb] ?? ((to, id, text) => say(to, id, text));
    await turn(client, params.sessionId, rest.join(" "), session);
  } catch (error) {
    if (session.abort.signal.aborted) return { stopReason: "cancelled" };
    throw error;
  }
  return { stopReason: "end_turn" };
}

const agent = acp
  .agent({ name: "typescript-example" })
  .onRequest("initialize", () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    agentCapabilities: { loadSession: true, sessionCapabilities: { list: {}, close: {} } },
    agentInfo: { name: "typescript-example", version: "1" },
  }))
  .onRequest("authenticate", () => ({}))
  .onRequest("session/new", ({ params }) => {
    const sessionId = crypto.randomUUID().replaceAll("-", "");
    sessions.set(sessionId, { cwd: params.cwd, history: [], abort: new AbortController() });
    return { sessionId };
  })
  .onRequest("session/load", async ({ params, client }) => {
    for (const text of find(params.sessionId).history) {
      const update = { sessionUpdate: "user_message_chunk", content: { type: "text", text } };
      await client.notify("session/update", { sessionId: params.sessionId, update });
    }
    return {};
  })
  .onRequest("session/list", () => ({
    sessions: [...sessions].map(([sessionId, { cwd }]) => ({ sessionId, cwd })),
  }))
  .onRequest("session/close", ({ params }) => {
    find(params.sessionId).abort.abort();
    sessions.delete(params.sessionId);
    return {};
  })
  .onRequest("session/prompt", ({ params, client }) => prompt(params, client))
  .onNotification("session/cancel", ({ params }) => sessions.get(params.sessionId)?.abort.abort());

async function serve(folder) {
  const load = (...path) => import(pathToFileURL(join(...path)).href);
  const { WebSocketServer } = await load(folder, "wrapper.mjs");
  const { AcpServer } = await load(process.env.ACP_SDK, "dist/server.js");
  const adapter = await load(process.env.ACP_SDK, "dist/node-adapter.js");
  const { createServer } = await import("node:http");
  const sockets = new WebSocketServer({ noServer: true });
  const upgrade = adapter.createNodeWebSocketUpgradeHandler(new AcpServer({ agent }), sockets);
  const server = createServer((_, answer) => answer.writeHead(404).end());
  server.on("upgrade", upgrade);
  server.listen(0, "127.0.0.1", () => {
    console.log(`ws://127.0.0.1:${server.address().port}/acp`);
  });
}

if (process.env.ACP_WS) await serve(process.env.ACP_WS);
else agent.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
