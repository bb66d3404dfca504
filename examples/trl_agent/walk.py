"""An environment for TRL: eight rooms in a ring, and doors that may be closed."""

ROOMS = "abcdefgh"


class Walk:
    """A walk from one room to another; public methods are the tools of the model."""

    def reset(self, start: str, goal: str, closed: str, **_) -> str:
        self.room = start
        self.goal = goal
        self.closed = closed
        self.given = 0.0
        return f" You are in room {start}. Walk to room {goal}."

    def step(self, word: str) -> str:
        """Go through a door to the next room of the ring.

        Args:
            word: The letter of that room, such as a.
        """
        here = ROOMS.index(self.room)
        if word not in (ROOMS[here - 1], ROOMS[(here + 1) % 8]) or word == self.closed:
            return f"There is no open door to room {word}. You are in room {self.room}."
        self.room = word
        if self.room == self.goal:
            self.given = 1.0
        return f"You are in room {self.room}."

    def get_reward(self) -> float:
        return self.given

    @property
    def turn_state(self) -> str:
        return self.room

    @property
    def reward_so_far(self) -> float:
        return self.given
