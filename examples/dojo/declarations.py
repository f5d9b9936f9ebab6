"""What the tools of AgentDojo declare: whose words their results are, and which arguments decide whom and what a call reaches.

AgentDojo says neither. Fields for which a service vouches are ids, sizes, times, amounts, and who has sent something; texts are the words
of others. The names of files, channels and users are chosen by others, and name a thing of the service. Tools that are not here are
foreign in all they return, and all their arguments decide.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Declaration:
    """What one tool declares; each attribute is names, and the arguments of `ToolSpec` have the same ones."""

    own: str = ""
    identifiers: str = ""
    decides: str = "*"


_EVENT = "id_ start_time end_time participants all_day status"
_FILE = "id_ size last_modified owner"
_MAIL = "id_ sender recipients timestamp read status"
_PAYMENT = "id sender recipient amount date recurring"
_DIRECTORIES = """
    get_all_hotels_in_city get_hotels_prices get_hotels_address get_all_restaurants_in_city get_cuisine_type_for_restaurants
    get_price_for_restaurants get_restaurants_address get_dietary_restrictions_for_all_restaurants
"""
"""The travel service has them; its reviews are the words of others."""
_OF_USER = "get_user_information get_user_info get_iban get_balance search_contacts_by_name search_contacts_by_email get_current_day"

_BY_TOOLS = {
    # what is read
    _OF_USER: Declaration(own="*"),
    _DIRECTORIES: Declaration(own="*"),
    "get_day_calendar_events search_calendar_events": Declaration(own=_EVENT),
    "list_files search_files search_files_by_filename get_file_by_id": Declaration(own=_FILE, identifiers="filename"),
    "search_emails get_unread_emails get_received_emails get_sent_emails": Declaration(own=_MAIL),
    "get_most_recent_transactions get_scheduled_transactions": Declaration(own=_PAYMENT),
    "get_channels get_users_in_channel": Declaration(identifiers="*"),
    "read_channel_messages read_inbox": Declaration(identifiers="sender recipient"),
    # what is done
    "send_email": Declaration(own=_MAIL, decides="recipients cc bcc attachments"),
    "delete_email": Declaration(decides="email_id"),
    "create_calendar_event": Declaration(own=_EVENT, decides="title start_time participants"),
    "cancel_calendar_event": Declaration(decides="event_id"),
    "reschedule_calendar_event": Declaration(own=_EVENT, decides="event_id new_start_time new_end_time"),
    "add_calendar_event_participants": Declaration(own=_EVENT, decides="event_id participants"),
    "create_file": Declaration(own=_FILE, decides="filename"),
    "append_to_file delete_file": Declaration(own=_FILE, decides="file_id"),
    "share_file": Declaration(own=_FILE, decides="file_id email permission"),
    "send_money schedule_transaction": Declaration(own="*", decides="recipient amount"),
    "update_scheduled_transaction": Declaration(own="*", decides="id recipient amount"),
    "send_direct_message": Declaration(decides="recipient"),
    "send_channel_message": Declaration(decides="channel"),
    "post_webpage": Declaration(decides="url"),
}
DECLARED = {name: declaration for names, declaration in _BY_TOOLS.items() for name in names.split()}
