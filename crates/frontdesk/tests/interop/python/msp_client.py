"""The published Python MSP SDK against `muse serve`; prints one JSON report.

usage: msp_client.py MUSE FRONTDESK CWD

MUSE is a name by which the SDK starts its host; FRONTDESK speaks ACP for the other side, an editor
that makes sessions and runs turns. Every result, error and notification is checked against the
generated models, strictly, on the stable and on the experimental surface.
"""

import asyncio
import json
import sys

import muse_code
from muse_code.connection.connection import MspError, create_uuid_v7_mint
from muse_code.connection.spawn import spawn_msp_connection
from muse_code.fold.item_store import ItemStore
from msp_models import Surface

WAIT_S = 30  # longest wait for one thing
STRANGER = "00000000-0000-7000-8000-000000000000"
mint = create_uuid_v7_mint()


class Client:
    """One MSP connection with what it heard."""

    def __init__(self, experimental: bool) -> None:
        self.surface = Surface(experimental)
        self.experimental = experimental
        self.heard: list[dict] = []
        self.news = asyncio.Event()
        self.wrong: list[str] = []

    async def connect(self, muse: str) -> None:
        handshake = await spawn_msp_connection(muse, args=["serve"])
        handshake._connection.on_notification(self.notified)
        handshake._connection.on_protocol_error(lambda error: self.wrong.append(error.message))
        wants = {"requestedCapabilities": ["sessionListStream", "userShell"]}
        params = {"clientInfo": {"name": "interop", "version": "1.0"}}
        if self.experimental:
            params["capabilities"] = {"experimentalApi": True, **wants}
        ready = await handshake.initialize(params)
        self.child, self.connection = ready, handshake._connection
        self.surface.check("InitializeResult", ready.initialize_result)

    def notified(self, frame: dict) -> None:
        try:
            self.surface.notification(frame)
        except Exception as error:  # told at the end, with the frame
            self.wrong.append(f"{error}\n{json.dumps(frame)}")
        self.heard.append(frame)
        self.news.set()

    async def call(self, method: str, **params: object) -> dict:
        result = await asyncio.wait_for(self.connection.request(method, params), WAIT_S)
        self.surface.result(method, result)
        return result

    async def refused(self, method: str, **params: object) -> dict:
        try:
            await asyncio.wait_for(self.connection.request(method, params), WAIT_S)
        except MspError as error:
            self.surface.error(error.code, error.data)
            return {"code": error.code, **error.data}
        raise AssertionError(f"{method} {params} was not refused")

    async def hear(self, method: str, when=lambda params: True, after: int = 0) -> dict:
        """The first notification of that kind behind place `after`."""

        async def found() -> dict:
            while True:
                for frame in self.heard[after:]:
                    if frame["method"] == method and when(frame["params"]):
                        return frame["params"]
                self.news.clear()
                await self.news.wait()

        try:
            return await asyncio.wait_for(found(), WAIT_S)
        except asyncio.TimeoutError:
            raise AssertionError(f"no {method} in {[f['method'] for f in self.heard[after:]]}")

    async def close(self) -> int:
        exit = await self.child.close()
        assert not self.wrong, "\n".join(self.wrong)
        return exit.code if exit.signal is None else exit.signal


class Editor:
    """A small ACP client on `frontdesk acp`; permissions wait until they are answered."""

    async def connect(self, frontdesk: str) -> None:
        pipe = asyncio.subprocess.PIPE
        self.child = await asyncio.create_subprocess_exec(
            frontdesk, "acp", stdin=pipe, stdout=pipe, limit=64 << 20
        )
        self.answers: dict[int, asyncio.Future] = {}
        self.questions: asyncio.Queue = asyncio.Queue()
        self.reader = asyncio.create_task(self.read())
        info = {"name": "editor", "version": "7"}
        await self.call("initialize", protocolVersion=1, clientCapabilities={}, clientInfo=info)

    async def read(self) -> None:
        while line := await self.child.stdout.readline():
            frame = json.loads(line)
            if "method" not in frame:
                self.answers.pop(frame["id"]).set_result(frame)
            elif "id" in frame:
                await self.questions.put(frame)

    def send(self, **frame: object) -> None:
        self.child.stdin.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def ask(self, method: str, **params: object) -> asyncio.Future:
        number = len(self.answers) + 1000 * (1 + getattr(self, "count", 0))
        self.count = getattr(self, "count", 0) + 1
        self.answers[number] = asyncio.get_running_loop().create_future()
        self.send(id=number, method=method, params=params)
        return self.answers[number]

    async def call(self, method: str, **params: object) -> dict:
        frame = await asyncio.wait_for(self.ask(method, **params), WAIT_S)
        assert "result" in frame, frame
        return frame["result"]

    def prompt(self, session: str, text: str) -> asyncio.Future:
        return self.ask(
            "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]
        )

    async def answer(self, option_kind: str) -> None:
        question = await asyncio.wait_for(self.questions.get(), WAIT_S)
        options = question["params"]["options"]
        chosen = next(o["optionId"] for o in options if o["kind"] == option_kind)
        outcome = {"outcome": "selected", "optionId": chosen}
        self.send(id=question["id"], result={"outcome": outcome})

    async def close(self) -> None:
        self.child.stdin.close()
        await self.child.wait()
        await self.reader


async def live_turn(stable: Client, editor: Editor, session: str) -> dict:
    """A followed turn: every event, the SDK's own item store, and a question answered."""
    await stable.call("view/subscribe", sessionId=session)
    place = len(stable.heard)
    turn = editor.prompt(session, "stream 5")
    done = await stable.hear("turn/completed", after=place)
    assert (await turn)["result"]["stopReason"] == "end_turn"
    assert done["terminal"] == "completed", done
    store, cursors = ItemStore(), []
    for frame in stable.heard[place:]:
        params = frame["params"]
        if params.get("sessionId") != session or frame["method"] == "session/statusChanged":
            continue
        cursors.append(params["viewCursor"])
        if frame["method"] == "item/delta":
            store.apply_delta(params["itemId"], params["delta"], params["field"])
        elif "item" in params:
            store.apply(params["item"])
    assert len(cursors) == len(set(cursors)), cursors
    said = [item for item in store.list() if item["kind"] == "agentMessage"]
    for item in said:
        assert item["status"] == "completed", item
        assert store.accumulated(item["itemId"]) == item["text"], item
    methods = [frame["method"] for frame in stable.heard[place:]]
    for method in ["turn/started", "item/started", "item/delta", "item/completed"]:
        assert method in methods, methods
    return {"text": "".join(item["text"] for item in said), "events": len(cursors)}


async def question(stable: Client, wide: Client, editor: Editor, session: str, kind: str) -> dict:
    place, wide_place = len(stable.heard), len(wide.heard)
    turn = editor.prompt(session, "ask")
    waits = lambda params: params.get("attention") == ["approvalPending"]
    status = await wide.hear("session/statusChanged", waits, wide_place)
    assert status["status"] == "running" and status["sessionId"] == session, status
    requested = await stable.hear("approval/requested", after=place)
    pending = await stable.call("approval/listPending", sessionId=session)
    assert pending["approvals"] == [requested], pending
    read = await stable.call("session/read", sessionId=session)
    assert read["session"]["attention"] == ["approvalPending"], read
    assert read["session"]["activeTurnId"] == requested["turnId"], read
    (pointer,) = read["pendingRequests"]
    assert pointer["approvalId"] == requested["approvalId"], pointer
    assert pointer["viewCursor"] == requested["viewCursor"], pointer
    await editor.answer(kind)
    resolved = await stable.hear("approval/resolved", after=place)
    await turn
    await stable.hear("turn/completed", after=place)
    idle = lambda params: params["status"] == "idle" and "attention" not in params
    await wide.hear("session/statusChanged", idle, wide_place)
    assert (await stable.call("approval/listPending", sessionId=session))["approvals"] == []
    items = [f["params"]["item"] for f in stable.heard[place:] if "item" in f["params"]]
    last = [item for item in items if item["itemId"] == requested["itemId"]][-1]
    return {"decision": resolved["decision"], "result": resolved["policyResult"],
            "by": resolved["resolvedBy"], "tool": last["status"]}


async def pages(client: Client, session: str) -> dict:
    """Forwards and backwards, in steps of two, give the same events; a replay gives them too."""
    forward, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = await client.call("view/page", sessionId=session, limit=2, **more)
        for event in page["events"]:
            client.surface.event(event["method"], event["params"])
        forward += page["events"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
        assert page["events"], page
    backward, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = await client.call(
            "view/page", sessionId=session, limit=2, direction="backward", **more
        )
        backward = page["events"] + backward
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert forward == backward, (len(forward), len(backward))
    place = len(client.heard)
    start = forward[0]["params"]["viewCursor"]
    head = (await client.call("view/subscribe", sessionId=session, after=start))["viewCursor"]
    at_head = lambda params: params["viewCursor"] == head
    await client.hear(forward[-1]["method"], at_head, place)
    replay = [
        {"method": frame["method"], "params": frame["params"]}
        for frame in client.heard[place:]
        if "sourceRange" in frame["params"]
    ]
    assert replay == forward[1:], (len(replay), len(forward))
    await client.call("view/unsubscribe", sessionId=session)
    await client.call("view/unsubscribe", sessionId=session)
    read = await client.call("session/read", sessionId=session, excludeItems=False)
    done = {e["params"]["item"]["itemId"] for e in forward if e["method"] == "item/completed"}
    assert done == {item["itemId"] for item in read["history"]["items"]}, read["history"]
    return {"events": len(forward), "history": read["history"]["mode"],
            "lastTurn": read["lastTurn"]["terminal"]}


async def lists(client: Client, session: str, cwd: str) -> dict:
    rows = (await client.call("session/list"))["sessions"]
    assert any(row["sessionId"] == session for row in rows), rows
    assert all("nameOrigin" not in row and "generatedName" not in row for row in rows), rows
    seen, cursor = [], None
    while True:
        page = await client.call("session/list", limit=1, cursor=cursor)
        seen += [row["sessionId"] for row in page["sessions"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == [row["sessionId"] for row in rows], (seen, rows)
    here = await client.call("session/list", workspaceRoot=cwd)
    assert here["sessions"] == [row for row in rows if row["workspaceRoot"] == cwd], here
    none = await client.call("session/list", workspaceRoot=cwd + "/")
    assert none["sessions"] == [] and "appliedFilter" not in none
    late = await client.call("session/list", updatedAfter="2100-01-01T00:00:00Z")
    assert late["sessions"] == []
    wanted = {"sessionId": {"anyOf": [session.upper(), session]}, "branch": {"anyOf": [None]},
              "text": {"fields": ["title"], "allOf": [" STREAM "]}}
    found = await client.call("session/list", filter=wanted)
    assert [row["sessionId"] for row in found["sessions"]] == [session], found
    assert found["appliedFilter"]["sessionId"] == {"anyOf": [session]}, found
    assert (await client.call("session/list", filter={}))["appliedFilter"] == {}
    return {"rows": len(rows)}


async def errors(client: Client, session: str) -> dict:
    said = {}

    async def refused(name: str, method: str, **params: object) -> None:
        said[name] = await client.refused(method, **params)

    await refused("unknown", "session/read", sessionId=STRANGER)
    await refused("method", "turn/start", sessionId=session)
    await refused("params", "session/read", sessionId=7)
    await refused("limit", "session/list", limit=201)
    await refused("cursor", "session/list", cursor="l:0:0:x")
    await refused("filter", "session/list", filter={"text": {"fields": ["name"]}})
    await refused("again", "initialize", clientInfo={"name": "x", "version": "1"})
    await refused("anchor", "view/page", sessionId=session, limit=1, cursor=f"v:{STRANGER}:1")
    await refused("ahead", "view/subscribe", sessionId=session, after=f"v:{session}:999999")
    await refused("both", "view/page", sessionId=session, limit=1, cursor="x", anchor="latestCompaction")
    await refused("compaction", "view/page", sessionId=session, limit=1, anchor="latestCompaction")
    await refused("experimental", "peer/list")
    await refused("experimentalParam", "session/start", worktree={})
    return said


async def rename(client: Client, session: str) -> dict:
    """Said twice it is done once; the same id for something else is refused."""
    await client.call("view/subscribe", sessionId=session)
    place = len(client.heard)
    command = {"commandId": mint(), "sessionId": session, "name": " Fix the parser "}
    first = await client.call("session/rename", **command)
    told = await client.hear("session/nameChanged", after=place)
    assert told["name"] == "Fix the parser" and told["nameOrigin"] == "custom", told
    assert await client.call("session/rename", **command) == first
    assert sum(f["method"] == "session/nameChanged" for f in client.heard[place:]) == 1
    refused = await client.refused("session/rename", **{**command, "name": "other"})
    assert refused["commandId"] == command["commandId"], refused
    read = await client.call("session/read", sessionId=session)
    assert (read["session"]["name"], read["session"]["nameOrigin"]) == (told["name"], "custom")
    return {"ack": {k: v for k, v in first.items() if k != "commandId"}, "refused": refused}


async def fork(client: Client, other: Client, session: str) -> dict:
    """The agent forks; the answer comes once, however often it is asked for."""
    before = await client.call("session/read", sessionId=session, excludeItems=False)
    place, other_place = len(client.heard), len(other.heard)
    command = {"commandId": mint(), "sessionId": session}
    made = await client.call("session/fork", **command)
    new = made["session"]
    methods = [frame["method"] for frame in client.heard[place:]]
    assert "session/started" in methods, methods
    mine = lambda params: params["session"]["sessionId"] == new["sessionId"]
    await other.hear("session/started", mine, other_place)
    assert await client.call("session/fork", **command) == made
    text = lambda history: [item.get("text") for item in history["items"] if item["kind"] == "userMessage"]
    assert text(made["history"]) == text(before["history"]), made["history"]
    assert new["forkedFrom"]["sessionId"] == session, new
    assert new["forkedFrom"]["commandId"] == command["commandId"], new
    assert "createdByClient" not in new, new
    unknown = {"lastTurnId": "no such turn"}
    cut = await client.refused("session/fork", commandId=mint(), sessionId=session, cutPoint=unknown)
    started = [f for f in client.heard[place:] if f["method"] == "session/started"]
    assert len(started) == 1, started
    return {"session": new, "history": made["history"]["mode"], "cut": cut}


async def main(muse: str, frontdesk: str, cwd: str) -> None:
    editor, stable, wide = Editor(), Client(False), Client(True)
    await editor.connect(frontdesk)
    await stable.connect(muse)
    await wide.connect(muse)
    made = await editor.call("session/new", cwd=cwd, mcpServers=[])
    session = made["sessionId"]
    born = (await stable.hear("session/started"))["session"]
    assert born["sessionId"] == session and born["status"] == "idle", born
    await wide.hear("session/started")
    report = {"born": born, "live": await live_turn(stable, editor, session)}
    row = await wide.hear("session/listChanged", lambda p: p["session"]["turnCount"] == 1)
    report["listChanged"] = row["session"]
    assert not any(f["method"] == "session/listChanged" for f in stable.heard)
    report["allowed"] = await question(stable, wide, editor, session, "allow_once")
    report["denied"] = await question(stable, wide, editor, session, "reject_once")
    report["pages"] = await pages(wide, session)
    report["lists"] = await lists(stable, session, cwd)
    report["rename"] = await rename(stable, session)
    report["fork"] = await fork(stable, wide, session)
    report["errors"] = await errors(stable, session)
    report["wide"] = await wide.refused("peer/list")
    place = len(wide.heard)
    await editor.call("session/close", sessionId=session)
    closed = await wide.hear("session/closed", after=place)
    cold = await wide.hear("session/statusChanged", lambda p: p["status"] == "notLoaded", place)
    order = [f["method"] for f in wide.heard[place:] if f["method"] != "session/listChanged"]
    assert order.index("session/closed") < order.index("session/statusChanged"), order
    report["closed"] = {"reason": closed["reason"], "cursor": cold["viewCursor"] == closed["viewCursor"]}
    read = await stable.call("session/read", sessionId=session)
    assert read["session"]["status"] == "notLoaded" and read["session"]["activeTurnId"] is None
    report["read"] = read["session"]
    await editor.close()
    report["exits"] = [await stable.close(), await wide.close()]
    report["checked"] = {"stable": stable.surface.checked, "experimental": wide.surface.checked}
    report["sdk"] = muse_code.EXPECTED_SCHEMA_FINGERPRINT
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:4]))
