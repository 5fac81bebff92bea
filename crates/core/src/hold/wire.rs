//! Encoding and the two decoders. Used through [`super`] only.

use super::{BODY_BYTES_MAX, Exit, HEADER_BYTES, Hello, Refusal, ToDaemon, ToHolder, WireError};

const ATTACH: u8 = 0x01;
const INPUT: u8 = 0x02;
const INPUT_PIECE: u8 = 0x03;
const ACK: u8 = 0x04;
const STOP: u8 = 0x05;
const CLAIM: u8 = 0x06;
const RELEASE: u8 = 0x07;
const CLOSE_INPUT: u8 = 0x08;

const HELLO: u8 = 0x81;
const OUT: u8 = 0x82;
const ACCEPTED: u8 = 0x83;
const REFUSED: u8 = 0x84;
const INPUT_CLOSED: u8 = 0x85;
const AGENT_EXITED: u8 = 0x86;
const EOF: u8 = 0x87;
const GONE: u8 = 0x88;
const CLAIMED: u8 = 0x89;
const HELD: u8 = 0x8a;
const CLAIM_FAILED: u8 = 0x8b;
const RELEASED: u8 = 0x8c;

const INPUT_FIXED_BYTES: usize = 16;
const OUT_FIXED_BYTES: usize = 8;
const FIXED_BYTES_MAX: usize = INPUT_FIXED_BYTES;

/// What stands in front of the `piece_bytes` (at most [`super::PIECE_BYTES_MAX`]) of an
/// [`ToHolder::Input`].
#[must_use]
pub fn input_header(
    number: u64,
    total_bytes: u64,
    piece_bytes: usize,
) -> [u8; HEADER_BYTES + INPUT_FIXED_BYTES] {
    let mut bytes = [0; HEADER_BYTES + INPUT_FIXED_BYTES];
    bytes[..5].copy_from_slice(&head(INPUT, INPUT_FIXED_BYTES + piece_bytes));
    bytes[5..13].copy_from_slice(&number.to_le_bytes());
    bytes[13..].copy_from_slice(&total_bytes.to_le_bytes());
    bytes
}

/// What stands in front of the bytes of an [`ToHolder::InputPiece`].
#[must_use]
pub fn input_piece_header(piece_bytes: usize) -> [u8; HEADER_BYTES] {
    head(INPUT_PIECE, piece_bytes)
}

/// What stands in front of the bytes of a [`ToDaemon::Out`].
#[must_use]
pub fn out_header(offset: u64, piece_bytes: usize) -> [u8; HEADER_BYTES + OUT_FIXED_BYTES] {
    let mut bytes = [0; HEADER_BYTES + OUT_FIXED_BYTES];
    bytes[..5].copy_from_slice(&head(OUT, OUT_FIXED_BYTES + piece_bytes));
    bytes[5..].copy_from_slice(&offset.to_le_bytes());
    bytes
}

fn head(kind: u8, body_bytes: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(body_bytes <= BODY_BYTES_MAX, "a body of {body_bytes} bytes");
    let [a, b, c, d] = u32::try_from(body_bytes).unwrap_or(u32::MAX).to_le_bytes();
    [kind, a, b, c, d]
}

fn put(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    out.extend_from_slice(&head(kind, parts.iter().map(|part| part.len()).sum()));
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// `first` behind its length, then `second` up to the end of the body.
fn put_texts(out: &mut Vec<u8>, kind: u8, first: &str, second: &str) {
    let length = u32::try_from(first.len()).unwrap_or(u32::MAX).to_le_bytes();
    put(out, kind, &[&length, first.as_bytes(), second.as_bytes()]);
}

impl ToHolder<'_> {
    /// Appends the message's bytes. Pieces must not be longer than [`super::PIECE_BYTES_MAX`], texts not
    /// longer than their limits.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Attach { version, from_offset } => {
                put(out, ATTACH, &[&version.to_le_bytes(), &from_offset.to_le_bytes()]);
            }
            Self::Input { number, total_bytes, piece } => {
                out.extend_from_slice(&input_header(*number, *total_bytes, piece.len()));
                out.extend_from_slice(piece);
            }
            Self::InputPiece { piece } => put(out, INPUT_PIECE, &[piece]),
            Self::Ack { offset } => put(out, ACK, &[&offset.to_le_bytes()]),
            Self::CloseInput => put(out, CLOSE_INPUT, &[]),
            Self::Stop { term_ms } => put(out, STOP, &[&term_ms.to_le_bytes()]),
            Self::Claim { name, info } => put_texts(out, CLAIM, name, info),
            Self::Release { name } => put_texts(out, RELEASE, name, ""),
        }
    }
}

impl ToDaemon<'_> {
    /// Appends the message's bytes. Pieces must not be longer than [`super::PIECE_BYTES_MAX`], texts not
    /// longer than their limits.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            // A greeting has only numbers and short texts, which always can be written.
            Self::Hello(hello) => {
                put(out, HELLO, &[&serde_json::to_vec(hello).unwrap_or_default()]);
            }
            Self::Out { offset, bytes } => {
                out.extend_from_slice(&out_header(*offset, bytes.len()));
                out.extend_from_slice(bytes);
            }
            Self::Accepted { number } => put(out, ACCEPTED, &[&number.to_le_bytes()]),
            Self::Refused { number, reason } => {
                put(out, REFUSED, &[&number.to_le_bytes(), &[reason.code()]]);
            }
            Self::InputClosed => put(out, INPUT_CLOSED, &[]),
            Self::AgentExited(exit) => {
                let (how, value) = match exit {
                    Exit::Code(code) => (0, code),
                    Exit::Signal(signal) => (1, signal),
                };
                put(out, AGENT_EXITED, &[&[how], &value.to_le_bytes()]);
            }
            Self::Eof { end } => put(out, EOF, &[&end.to_le_bytes()]),
            Self::Gone => put(out, GONE, &[]),
            Self::Claimed { name } => put_texts(out, CLAIMED, name, ""),
            Self::Held { name, info } => put_texts(out, HELD, name, info),
            Self::ClaimFailed { name, reason } => put_texts(out, CLAIM_FAILED, name, reason),
            Self::Released { name } => put_texts(out, RELEASED, name, ""),
        }
    }
}

impl Refusal {
    const fn code(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Full => 1,
            Self::Disk => 2,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Closed,
            1 => Self::Full,
            2 => Self::Disk,
            other => Self::Other(other),
        }
    }
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

fn take_short(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

fn texts(mut body: &[u8]) -> Option<(&str, &str)> {
    let length = usize::try_from(take_short(&mut body)?).ok()?;
    let (first, second) = body.split_at_checked(length)?;
    Some((std::str::from_utf8(first).ok()?, std::str::from_utf8(second).ok()?))
}

/// Reads what a daemon says.
#[derive(Debug, Default)]
pub struct HolderDecoder(Cutter);

impl HolderDecoder {
    /// Takes the stream's next bytes and hands on the messages they complete.
    ///
    /// # Errors
    /// If the bytes are not the protocol; the connection is then of no more use.
    pub fn feed(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(ToHolder<'_>),
    ) -> Result<(), WireError> {
        self.0.feed(input, holder_shape, |cut| {
            sink(match cut {
                Cut::Long { kind: INPUT, before: 0, mut fixed, piece } => ToHolder::Input {
                    number: take_number(&mut fixed).unwrap_or_default(),
                    total_bytes: take_number(&mut fixed).unwrap_or_default(),
                    piece,
                },
                Cut::Long { piece, .. } => ToHolder::InputPiece { piece },
                Cut::Whole { kind, body } => {
                    to_holder(kind, body).ok_or(WireError::Damaged(kind))?
                }
            });
            Ok(())
        })
    }
}

/// Reads what a holder says.
#[derive(Debug, Default)]
pub struct DaemonDecoder(Cutter);

impl DaemonDecoder {
    /// Takes the stream's next bytes and hands on the messages they complete.
    ///
    /// # Errors
    /// If the bytes are not the protocol; the connection is then of no more use.
    pub fn feed(
        &mut self,
        input: &[u8],
        mut sink: impl FnMut(ToDaemon<'_>),
    ) -> Result<(), WireError> {
        self.0.feed(input, daemon_shape, |cut| {
            sink(match cut {
                Cut::Long { before, mut fixed, piece, .. } => ToDaemon::Out {
                    offset: take_number(&mut fixed).unwrap_or_default().saturating_add(before),
                    bytes: piece,
                },
                Cut::Whole { kind: HELLO, body } => ToDaemon::Hello(Box::new(
                    serde_json::from_slice::<Hello>(body).map_err(WireError::Hello)?,
                )),
                Cut::Whole { kind, body } => {
                    to_daemon(kind, body).ok_or(WireError::Damaged(kind))?
                }
            });
            Ok(())
        })
    }
}

fn to_holder(kind: u8, mut body: &[u8]) -> Option<ToHolder<'_>> {
    Some(match kind {
        ATTACH => ToHolder::Attach {
            version: take_short(&mut body)?,
            from_offset: take_number(&mut body)?,
        },
        ACK => ToHolder::Ack { offset: take_number(&mut body)? },
        CLOSE_INPUT => ToHolder::CloseInput,
        STOP => ToHolder::Stop { term_ms: take_short(&mut body)? },
        CLAIM => {
            let (name, info) = texts(body)?;
            ToHolder::Claim { name, info }
        }
        RELEASE => ToHolder::Release { name: texts(body)?.0 },
        _ => return None,
    })
}

fn to_daemon(kind: u8, mut body: &[u8]) -> Option<ToDaemon<'_>> {
    Some(match kind {
        ACCEPTED => ToDaemon::Accepted { number: take_number(&mut body)? },
        REFUSED => ToDaemon::Refused {
            number: take_number(&mut body)?,
            reason: Refusal::from_code(*body.first()?),
        },
        INPUT_CLOSED => ToDaemon::InputClosed,
        AGENT_EXITED => {
            let (how, mut value) = body.split_first()?;
            let value = take_short(&mut value)?.cast_signed();
            ToDaemon::AgentExited(if *how == 0 { Exit::Code(value) } else { Exit::Signal(value) })
        }
        EOF => ToDaemon::Eof { end: take_number(&mut body)? },
        GONE => ToDaemon::Gone,
        CLAIMED => ToDaemon::Claimed { name: texts(body)?.0 },
        HELD => {
            let (name, info) = texts(body)?;
            ToDaemon::Held { name, info }
        }
        CLAIM_FAILED => {
            let (name, reason) = texts(body)?;
            ToDaemon::ClaimFailed { name, reason }
        }
        RELEASED => ToDaemon::Released { name: texts(body)?.0 },
        _ => return None,
    })
}

/// How a message of a type is taken off the stream.
#[derive(Clone, Copy)]
enum Shape {
    /// Gathered, then read.
    Whole,
    /// Handed on as it comes, behind this many bytes of numbers.
    Long(usize),
    /// Not known here: skipped.
    Unknown,
}

const fn holder_shape(kind: u8) -> Shape {
    match kind {
        INPUT => Shape::Long(INPUT_FIXED_BYTES),
        INPUT_PIECE => Shape::Long(0),
        ATTACH | ACK | STOP | CLAIM | RELEASE | CLOSE_INPUT => Shape::Whole,
        _ => Shape::Unknown,
    }
}

const fn daemon_shape(kind: u8) -> Shape {
    match kind {
        OUT => Shape::Long(OUT_FIXED_BYTES),
        HELLO | ACCEPTED | REFUSED | INPUT_CLOSED | AGENT_EXITED | EOF | GONE | CLAIMED | HELD
        | CLAIM_FAILED | RELEASED => Shape::Whole,
        _ => Shape::Unknown,
    }
}

enum Cut<'a> {
    Whole { kind: u8, body: &'a [u8] },
    Long { kind: u8, fixed: &'a [u8], before: u64, piece: &'a [u8] },
}

/// Cuts a byte stream into messages. It holds on to at most one short message or the numbers of a
/// long one, and to nothing between messages.
#[derive(Debug, Default)]
struct Cutter {
    held: Vec<u8>,
    long: Option<Long>,
}

#[derive(Clone, Copy, Debug)]
struct Long {
    kind: u8,
    skip: bool,
    fixed: [u8; FIXED_BYTES_MAX],
    before: u64,
    left: usize,
}

impl Cutter {
    fn feed(
        &mut self,
        mut input: &[u8],
        shape: impl Fn(u8) -> Shape,
        mut sink: impl FnMut(Cut<'_>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        loop {
            if let Some(long) = self.long {
                if input.is_empty() && long.left > 0 {
                    return Ok(());
                }
                let (piece, rest) = input.split_at(long.left.min(input.len()));
                input = rest;
                let left = long.left - piece.len();
                let before = long.before + piece.len() as u64;
                self.long = if left > 0 { Some(Long { before, left, ..long }) } else { None };
                if !long.skip {
                    let (kind, before) = (long.kind, long.before);
                    sink(Cut::Long { kind, fixed: &long.fixed, before, piece })?;
                }
                continue;
            }
            if self.held.is_empty()
                && let Some(need) = start_bytes(input, &shape)?
                && let Some((start, rest)) = input.split_at_checked(need)
            {
                input = rest;
                self.begin(start, &shape, &mut sink)?;
                continue;
            }
            let need = start_bytes(&self.held, &shape)?.unwrap_or(HEADER_BYTES);
            if self.held.len() >= need {
                let start = std::mem::take(&mut self.held);
                self.begin(&start, &shape, &mut sink)?;
                continue;
            }
            if input.is_empty() {
                return Ok(());
            }
            let (part, rest) = input.split_at((need - self.held.len()).min(input.len()));
            self.held.extend_from_slice(part);
            input = rest;
        }
    }

    fn begin(
        &mut self,
        start: &[u8],
        shape: &impl Fn(u8) -> Shape,
        sink: &mut impl FnMut(Cut<'_>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let Some((kind, length)) = read_head(start)? else { return Ok(()) };
        let body = start.get(HEADER_BYTES..).unwrap_or_default();
        let mut fixed = [0; FIXED_BYTES_MAX];
        let (skip, fixed_bytes) = match shape(kind) {
            Shape::Whole => return sink(Cut::Whole { kind, body }),
            Shape::Unknown => (true, 0),
            Shape::Long(bytes) => (false, bytes),
        };
        let left = length.checked_sub(fixed_bytes).ok_or(WireError::Damaged(kind))?;
        for (to, from) in fixed.iter_mut().zip(body) {
            *to = *from;
        }
        self.long = Some(Long { kind, skip, fixed, before: 0, left });
        Ok(())
    }
}

/// How many bytes must be there before a message can begin; `None` while its head is incomplete.
fn start_bytes(bytes: &[u8], shape: &impl Fn(u8) -> Shape) -> Result<Option<usize>, WireError> {
    let Some((kind, length)) = read_head(bytes)? else { return Ok(None) };
    Ok(Some(
        HEADER_BYTES
            + match shape(kind) {
                Shape::Whole => length,
                Shape::Long(fixed) if length < fixed => return Err(WireError::Damaged(kind)),
                Shape::Long(fixed) => fixed,
                Shape::Unknown => 0,
            },
    ))
}

fn read_head(bytes: &[u8]) -> Result<Option<(u8, usize)>, WireError> {
    let Some(([kind, length @ ..], _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length);
    match usize::try_from(length) {
        Ok(bytes) if bytes <= BODY_BYTES_MAX => Ok(Some((*kind, bytes))),
        _ => Err(WireError::TooLong(length)),
    }
}
