"""An agent made with the published Python SDK, with the manners of that SDK's own examples.

Its ids are "0", "1", ... in every process, `initialize` echoes whatever version it is offered,
`session/load` accepts any id and replays nothing, and what is not written here the SDK answers with
`null` or `{}` (list, resume, close). A turn does what the prompt's first word says: say, stream, ask, write, read, run, wait.
"""
import asyncio
import os

import acp
from acp import schema


class Agent(acp.Agent):
    def __init__(self):
        self.next_id = 0
        self.cwd = {}
        self.cancelled = {}

    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **kwargs):
        return schema.InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=schema.AgentCapabilities(load_session=True),
            agent_info=schema.Implementation(name="python-example", version="1"),
        )

    async def authenticate(self, method_id, **kwargs):
        return schema.AuthenticateResponse()

    async def new_session(self, cwd, mcp_servers=None, **kwargs):
        session = str(self.next_id)
        self.next_id += 1
        self.cwd[session] = cwd
        return schema.NewSessionResponse(session_id=session)

    async def load_session(self, cwd, session_id, mcp_servers=None, **kwargs):
        self.cwd[session_id] = cwd
        return schema.LoadSessionResponse()

    async def cancel(self, session_id, **kwargs):
        self.cancelled.setdefault(session_id, asyncio.Event()).set()

    async def say(self, session, text):
        await self.client.session_update(session_id=session, update=acp.update_agent_message_text(text))

    async def prompt(self, session_id, prompt, **kwargs):
        stop = self.cancelled[session_id] = asyncio.Event()
        words = "".join(getattr(block, "text", "") for block in prompt)
        verb, _, rest = words.partition(" ")
        turn = getattr(self, "turn_" + verb, self.turn_say)
        work = asyncio.ensure_future(turn(session_id, rest))
        ended = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not work.done():
            work.cancel()
            return schema.PromptResponse(stop_reason="cancelled")
        work.result()
        return schema.PromptResponse(stop_reason="end_turn")

    async def turn_say(self, session, rest):
        await self.say(session, rest)

    async def turn_stream(self, session, rest):
        for number in range(int(rest.split()[0])):
            await self.say(session, "chunk %d " % number)
            await asyncio.sleep(0.01)

    async def turn_wait(self, session, rest):
        await self.say(session, "waiting")
        await asyncio.sleep(int(rest) / 1000)

    async def turn_ask(self, session, rest):
        answer = await self.client.request_permission(
            session_id=session,
            tool_call=schema.ToolCallUpdate(tool_call_id="ask-1", title=rest, kind="other", status="pending"),
            options=[
                schema.PermissionOption(kind="allow_once", name="Allow", option_id="yes"),
                schema.PermissionOption(kind="reject_once", name="Reject", option_id="no"),
            ],
        )
        await self.say(session, "answer: " + getattr(answer.outcome, "option_id", "cancelled"))

    async def turn_write(self, session, rest):
        name, _, text = rest.partition(" ")
        await self.turn_ask(session, "write " + name)
        path = os.path.join(self.cwd.get(session, "/"), name)
        await self.client.write_text_file(session_id=session, path=path, content=text)
        await self.say(session, "written")

    async def turn_read(self, session, rest):
        path = os.path.join(self.cwd.get(session, "/"), rest)
        answer = await self.client.read_text_file(session_id=session, path=path)
        await self.say(session, answer.content)

    async def turn_run(self, session, rest):
        made = await self.client.create_terminal(session_id=session, command="sh", args=["-c", rest])
        term = getattr(made, "terminal_id", None) or made.id
        at = {"session_id": session, "terminal_id": term}
        await self.client.wait_for_terminal_exit(**at)
        shown = await self.client.terminal_output(**at)
        await self.client.release_terminal(**at)
        await self.say(session, shown.output)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Agent(), use_unstable_protocol=True))
